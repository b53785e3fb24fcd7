# SPDX-License-Identifier: Apache-2.0
"""Shows a training with uneven batches while it runs."""
