# SPDX-License-Identifier: Apache-2.0
"""Predicts divided inferences without a second machine, from profiles and recorded links."""
