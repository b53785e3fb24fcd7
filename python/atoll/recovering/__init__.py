# SPDX-License-Identifier: Apache-2.0
#
# The promises of recovery in process, each proven by the tests that docs/promises.md names:
# E-7: When ranks die at any point of a step, the others continue, and the model is that of one process.
"""`atoll.ElasticTrainer`: training that continues without lost ranks."""
