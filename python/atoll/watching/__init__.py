# SPDX-License-Identifier: Apache-2.0
"""What a training with uneven batches shows while it runs."""
