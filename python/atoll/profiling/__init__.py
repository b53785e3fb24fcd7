# SPDX-License-Identifier: Apache-2.0
"""What a device costs: time, memory and energy of the user's own model, by batch."""
