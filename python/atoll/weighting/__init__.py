# SPDX-License-Identifier: Apache-2.0
"""Exact gradients of uneven batches: each rank's gradients count as many samples, or valid elements, as it had."""
