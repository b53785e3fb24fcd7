# SPDX-License-Identifier: Apache-2.0
"""Uneven, exactly weighted batches in other libraries' training loops. Import the adapter you use; `import atoll`
imports none of them."""

__all__ = ["accelerate", "huggingface", "lightning"]
