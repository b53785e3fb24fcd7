# SPDX-License-Identifier: Apache-2.0
"""`atoll plan`: what plans would do, before a training."""
