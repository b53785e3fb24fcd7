# SPDX-License-Identifier: Apache-2.0
"""Global batches divided by a plan: every sample exactly once, on whichever rank."""
