# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of replicated models, from which a training goes on with other ranks."""
