# SPDX-License-Identifier: Apache-2.0
"""Divided inferences without a second machine: profiles and recorded links in, predictions out."""
