# SPDX-License-Identifier: Apache-2.0
#
# The promises of checkpoints, each proven by the tests that docs/promises.md names:
# E-5: A checkpoint is whole or absent: one that is damaged or was not finished is passed over for the one before.
# E-6: Checkpoints hold no code: none is saved, and none is run by loading one.
"""Checkpoints of replicated models, from which a training resumes on any ranks."""
