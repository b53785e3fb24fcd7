# SPDX-License-Identifier: Apache-2.0
"""Fewer bytes, opt-in: gradients between islands and boundaries of pipelines as blocks of 8-bit numbers."""
