# SPDX-License-Identifier: Apache-2.0
"""A model with gradients chosen by the caller, and their exact sums over ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atoll.packing.gradients import CompressedGradients
from support import device

SIZES = (1000, 7, 333, 1, 64, 2049)
SMALL_BUCKETS_MB = 0.001
# Two islands of one rank, of two, of different sizes, with interleaved ranks; three islands; islands of devices.
LAYOUTS = ("AB", "AABB", "ABA", "AAAB", "ABC", "Ab", "abaC")


class Fixed(nn.Module):
    """A model for which the gradient of the output is the input. Parameters are used in another order than they are
    registered in, so that DistributedDataParallel rebuilds its buckets."""

    def __init__(self, sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes])

    def forward(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        result = torch.zeros((), device=gradients[0].device)
        for index in (2, 0, 5, 1, 4, 3):
            if index < len(self.parts):
                result = result + (self.parts[index] * gradients[index]).sum().float()
        return result


def wrapped(sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float32) -> DistributedDataParallel:
    return DistributedDataParallel(Fixed(sizes, dtype).to(device()), bucket_cap_mb=SMALL_BUCKETS_MB)


def contribution(step: int, rank: int, sizes: Sequence[int] = SIZES) -> list[torch.Tensor]:
    """Returns a rank's gradients, whose magnitudes differ within and between parameters."""
    chance = torch.Generator().manual_seed(100 * step + rank)
    return [
        torch.randn(size, generator=chance) * 10.0 ** torch.randint(-3, 3, (size,), generator=chance) for size in sizes
    ]


def take_step(model: DistributedDataParallel, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Runs a step; returns the resulting gradients, one after the other, on the CPU."""
    model.zero_grad()
    parameters = list(model.parameters())
    given = [each.to(where) for each, where in zip(gradients, parameters, strict=True)]
    model(given).backward()
    return torch.cat([parameter.grad.detach().cpu().double() for parameter in parameters if parameter.grad is not None])


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.double() for tensor in tensors])


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the mean in float64, which is exact enough for a reference."""
    total = values.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def residual_of(compressed: CompressedGradients, sizes: Sequence[int] = SIZES) -> torch.Tensor:
    """Returns the residual of all ranks together, as part of the mean gradient."""
    found = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    for piece in compressed.state_dict()["pieces"]:
        index, begin, values = int(piece["name"].split(".")[1]), piece["begin"], piece["values"].cpu().double()
        found[index][begin : begin + values.numel()] += values
    total = torch.cat(found)
    dist.all_reduce(total)
    return total


def check_equal_everywhere(values: torch.Tensor) -> None:
    """Checks that all ranks hold the same bits; NaN equals NaN."""
    others = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(others, values)
    for rank, other in enumerate(others):
        assert torch.equal(other.nan_to_num(nan=7e77), values.nan_to_num(nan=7e77)), f"rank {rank} has other bits"
