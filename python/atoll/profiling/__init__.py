# SPDX-License-Identifier: Apache-2.0
"""Profiles devices: time, memory and energy of the user's own model, by batch."""
