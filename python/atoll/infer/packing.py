# SPDX-License-Identifier: Apache-2.0
"""What lossy packing would do to a tensor on its way to a server."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackingLoss:
    """Errors are relative to the largest magnitude of the tensor."""

    codec: str  # "raw" where the one that was asked for does not suit the tensor, or does not make it shorter
    packed_bytes: int
    largest_error: float
    mean_error: float


def packing_loss(tensor: torch.Tensor, codec: str) -> PackingLoss:
    """The tensor packed as a session with `lossy=codec` would, and unpacked again. ValueError for a codec that is not
    "half", "int8" or "jpeg". Values alone: what answers lose depends on the model."""
    from atoll import _C

    return PackingLoss(*_C.infer_packing_loss(tensor, codec))
