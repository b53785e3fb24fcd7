# SPDX-License-Identifier: Apache-2.0
"""The loss of lossy packing on a tensor's way to a server."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackingLoss:
    """Errors are relative to the largest magnitude of the tensor."""

    codec: str  # "raw" if the requested codec does not suit the tensor or does not make it shorter
    packed_bytes: int
    largest_error: float
    mean_error: float


def packing_loss(tensor: torch.Tensor, codec: str) -> PackingLoss:
    """Packs the tensor as a session with `lossy=codec` would, unpacks it, and returns the loss. Raises ValueError for a
    codec other than "half", "int8" or "jpeg". The loss is that of the tensor's values; that of the answers depends on
    the model."""
    from atoll import _C

    return PackingLoss(*_C.infer_packing_loss(tensor, codec))
