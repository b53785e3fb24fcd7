# SPDX-License-Identifier: Apache-2.0
"""Global batches cut by a plan: every sample once, whoever computes it."""
