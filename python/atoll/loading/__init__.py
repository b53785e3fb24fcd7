# SPDX-License-Identifier: Apache-2.0
#
# The promises of uneven batches, each proven by the tests that docs/promises.md names:
# E-1: With any shares the trained model is that of one process with the same global batches (float64: 1e-12 with SGD,
#   1e-10 with Adam).
# E-2: Each sample counts exactly once per epoch, whatever plans, restarts and numbers of ranks come between.
# E-3: Measuring a model changes no bit of its training.
# E-4: Ranks never train by different plans: plans that differ are an error on all of them.
"""Global batches divided by a plan: every sample exactly once, on whichever rank."""
