# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of replicated models, from which a training resumes on any ranks."""
