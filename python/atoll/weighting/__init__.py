# SPDX-License-Identifier: Apache-2.0
"""Exact gradients of uneven batches: each rank's gradients are weighted by its number of samples or valid elements."""
