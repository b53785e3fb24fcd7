# SPDX-License-Identifier: Apache-2.0
"""Detects what weights cannot make exact."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm

from atoll.weighting.batch_norm import SyncBatchNorm

FEW_SAMPLES = 16
IN_BATCH_LOSSES = ("contrastive", "infonce", "ntxent", "batchhard", "npair")
TOLERANCE = 1e-3


def local_norms(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that normalise over each rank's own samples."""
    return [
        module for module in model.modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm | nn.SyncBatchNorm)
    ]  # fmt: skip


def warnings_for(model: nn.Module, shares: Sequence[int], by_speed: bool) -> Iterator[str]:
    """Yields the warnings for the user, with the way out. `by_speed`: shares are to follow the ranks' speeds."""
    modules = list(model.modules())
    if by_speed and any(isinstance(module, FSDPModule) for module in modules):
        yield (
            "fully_shard: ranks wait for each other in every layer, so a rank's own speed cannot be measured and "
            'shares stay about equal: pass policy="fixed" with shares'
        )
    elif by_speed and any(isinstance(module, SyncBatchNorm) for module in modules):
        yield (
            "layers that normalise over all ranks wait for the other ranks: shares follow the speeds that were "
            "measured before the first step, not a rank that becomes slower later"
        )
    local = local_norms(model)
    smallest = min(share for share in shares if share) if any(shares) else 0
    if local and smallest < FEW_SAMPLES:
        yield (
            f"{len(local)} BatchNorm layers normalise over each rank's own samples, but some rank has only {smallest}: "
            "wrap atoll.training.convert_batch_norm(net) instead, or use GroupNorm or LayerNorm"
        )
    if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
        yield (
            "torch.nn.SyncBatchNorm does not weight its gradients by samples: use "
            "atoll.training.convert_batch_norm(net) instead"
        )
    for module in modules:
        name = type(module).__name__
        if any(word in name.lower() for word in IN_BATCH_LOSSES):
            yield (
                f"{name} compares samples of one batch: its loss depends on which samples share a batch, whatever the "
                "weights"
            )


def depends_on_batch(
    loss: Callable[[nn.Module, Any], torch.Tensor], model: nn.Module, batch: Any, halves: list[Any]
) -> bool:
    """Returns whether the loss of a batch differs from the mean of the losses of its halves, in evaluation mode. If so,
    no weights make uneven batches exact. Gradients are not disabled, because the loss may need them."""
    modes = [(module, module.training) for module in model.modules()]  # the user may have frozen some modules
    model.eval()
    try:
        whole, *parts = [float(torch.as_tensor(loss(model, each)).detach()) for each in (batch, *halves)]
    finally:
        for module, training in modes:
            module.training = training
    mean = sum(parts) / len(parts)
    return abs(whole - mean) > TOLERANCE * max(abs(whole), abs(mean))
