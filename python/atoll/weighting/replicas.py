# SPDX-License-Identifier: Apache-2.0
"""Whether ranks still hold the same model. Unlike devices round unlike in their optimizers, and nothing corrects that:
DistributedDataParallel sends parameters once, at the beginning."""

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
    """The largest difference between ranks in any parameter, relative to the largest parameter; 0 where all hold the
    same. Collective; costs two reductions of the model's size."""
    largest, difference = 0.0, 0.0
    for parameter in model.parameters():
        if parameter.numel() == 0:
            continue
        high, low = parameter.detach().clone(), parameter.detach().clone()
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        difference = max(difference, float((high - low).max()))
        largest = max(largest, float(high.abs().max()), float(low.abs().max()))
    return difference / largest if largest else 0.0


@torch.no_grad()
def align_replicas(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Gives all ranks the parameters of the group's first one. Collective."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, group_src=0, group=group)
