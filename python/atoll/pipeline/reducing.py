# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters that several ranks hold, and the norm of all gradients."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

BUCKET_BYTES = 25 << 20


class Reducer:
    """Adds up gradients over the ranks that hold copies of a parameter: those of other pipelines, and stages that share
    it. Each gets the same bits."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]],
        groups: Mapping[tuple[int, ...], dist.ProcessGroup],
    ) -> None:  # fmt: skip
        """`parameters`: of this rank, by their first names in the whole model."""
        self._copies: list[tuple[dist.ProcessGroup, list[nn.Parameter]]] = []
        for ranks, group in groups.items():
            held = [name for name in sorted(parameters) if holders[name] == ranks and parameters[name].requires_grad]
            if held:
                self._copies.append((group, [parameters[name] for name in held]))

    @torch.no_grad()
    def reduce(self) -> None:
        """Collective, after the last backward pass of a step. Where only some ranks used a parameter, others count as
        zeros; what nobody used has no gradient."""
        pending = []
        for group, parameters in self._copies:
            for bucket in _buckets(parameters):
                gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
                used = gradients[0].new_ones(len(bucket))
                for place, parameter in enumerate(bucket):
                    if parameter.grad is None:
                        used[place] = 0
                flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), used])
                work = dist.all_reduce(flat, group=group, async_op=True)
                pending.append((work, flat, bucket, gradients))
        for work, flat, bucket, gradients in pending:
            if work is not None:
                work.wait()
            *parts, used = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(bucket)])
            for place, (parameter, gradient, part) in enumerate(zip(bucket, gradients, parts, strict=True)):
                if parameter.grad is not None or used[place] > 0:
                    parameter.grad = part.view_as(gradient)  # copying each back would take a pass over all of them


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Of one type and about BUCKET_BYTES each."""
    buckets: list[list[nn.Parameter]] = []
    room: dict[torch.dtype, tuple[int, list[nn.Parameter]]] = {}
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        left, bucket = room.get(parameter.dtype, (0, []))
        if left < size or not bucket:
            left, bucket = BUCKET_BYTES, []
            buckets.append(bucket)
        bucket.append(parameter)
        room[parameter.dtype] = left - size, bucket
    return buckets


@torch.no_grad()
def total_norm(
    parameters: Sequence[nn.Parameter], norm_type: float, group: dist.ProcessGroup, device: torch.device
) -> torch.Tensor:
    """Of the gradients of the group's ranks, of which each gives its own `parameters`, with the same bits on all.
    Collective."""
    norms = [
        torch.linalg.vector_norm(parameter.grad, norm_type).to(torch.float64)
        for parameter in parameters
        if parameter.grad is not None
    ]
    own = torch.stack(norms) if norms else torch.zeros(1, dtype=torch.float64, device=device)
    if math.isinf(norm_type):
        largest = own.max().reshape(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return largest[0]
    powers = own.pow(norm_type).sum().reshape(1)
    dist.all_reduce(powers, group=group)
    return powers[0].pow(1 / norm_type)
