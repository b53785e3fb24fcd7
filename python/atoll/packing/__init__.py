# SPDX-License-Identifier: Apache-2.0
"""Opt-in compression: gradients between islands and boundaries of pipelines as blocks of 8-bit numbers."""
