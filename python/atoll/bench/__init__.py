# SPDX-License-Identifier: Apache-2.0
"""Measures collectives through torch.distributed. Every element of every result is checked between timed blocks."""
