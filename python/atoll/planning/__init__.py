# SPDX-License-Identifier: Apache-2.0
"""`atoll plan`: predicts the effect of plans before a training."""
