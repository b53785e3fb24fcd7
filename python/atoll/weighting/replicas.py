# SPDX-License-Identifier: Apache-2.0
"""Whether ranks still hold the same model. Unlike devices round unlike in their optimizers, and nothing corrects that:
DistributedDataParallel sends parameters once, at the beginning."""

import math

import torch
import torch.distributed as dist
from torch import nn

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(model: nn.Module) -> int:
    """32 bits that are equal for equal bits in all parameters, wherever they are. Reads each parameter once."""
    total = torch.zeros((), dtype=torch.int64)
    for place, parameter in enumerate(model.parameters()):
        flat = parameter.detach().contiguous().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        bits = flat.view(_BITS[flat.element_size()])
        total += bits.sum(dtype=torch.int64).cpu() * (2 * place + 1)
    return int(total) & 0xFFFFFFFF


@torch.no_grad()
def replica_difference(model: nn.Module, group: dist.ProcessGroup | None = None) -> float:
    """The largest difference between ranks in any parameter, relative to the largest finite parameter; 0 where all hold
    the same, infinite where one is not finite on some ranks only. Collective; costs two reductions of the model's
    size."""
    largest, difference = 0.0, 0.0
    for parameter in model.parameters():
        if parameter.numel() == 0:
            continue
        own = parameter.detach()
        # A reduction may lose what is not a number, and no difference to it can be told.
        high = own.masked_fill(own.isnan(), math.inf) if own.is_floating_point() else own.clone()
        low = high.clone()
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        difference = max(difference, float((high - low).masked_fill(high == low, 0).max()))
        largest = max(largest, _largest(high), _largest(low))
    if math.isinf(difference):
        return difference
    return difference / largest if largest else 0.0


def _largest(values: torch.Tensor) -> float:
    return float(values.masked_fill(values.isinf(), 0).abs().max())


@torch.no_grad()
def align_replicas(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Gives all ranks the parameters of the group's first one. Collective."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, group_src=0, group=group)
