# SPDX-License-Identifier: Apache-2.0
"""The process groups of a plan, and what they reduce: gradients of shared parameters, and the norm of all gradients."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from atoll._newer_torch import group_in_order
from atoll.loading.communication import islands_of
from atoll.packing.exchange import Exchange
from atoll.pipeline.items import Parts, first_named, ties_of
from atoll.pipeline.plan import Plan

BUCKET_BYTES = 25 << 20


def holders_of(whole: nn.Module, parts: Parts, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Returns for each parameter of the model, by its first name, the ranks that hold it: one in each pipeline, or
    several if stages share it."""
    ties = ties_of(whole)
    ranks: dict[str, set[int]] = {}
    for number, item in enumerate(parts.items):
        holders = {stage.rank for pipe in plan.pipes for stage in pipe.stages if number in stage.numbers}
        for name in first_named(whole, item.modules, ties):
            ranks.setdefault(name, set()).update(holders)
    return {name: tuple(sorted(holders)) for name, holders in ranks.items()}


class Groups:
    """The groups of one rank. Making them is collective over the default group."""

    def __init__(self, plan: Plan, holders: dict[str, tuple[int, ...]], rank: int) -> None:
        place = plan.place(rank)
        pipelines = [group_in_order(pipe.ranks) for pipe in plan.pipes]
        self.pipeline = pipelines[place]
        """The ranks of this rank's pipeline, in its order."""
        self.copies = {ranks: group_in_order(ranks) for ranks in sorted(set(holders.values())) if len(ranks) > 1}
        """The groups of ranks with copies of parameters, by these ranks. Those without this rank must not be used."""
        self.ends = group_in_order([pipe.stages[-1].rank for pipe in plan.pipes]) if len(plan.pipes) > 1 else None
        """The ranks that compute the loss; None if there is only one."""
        self.share = self._shares(plan, rank, place)
        """One rank of each pipeline, in their order, including this rank."""

    def _shares(self, plan: Plan, rank: int, place: int) -> dist.ProcessGroup:
        """Groups ranks at the same position; positions beyond the end of a shorter pipeline use its last rank."""
        longest = max(len(pipe.ranks) for pipe in plan.pipes)
        lines = [[pipe.ranks[min(position, len(pipe.ranks) - 1)] for pipe in plan.pipes] for position in range(longest)]
        groups = [group_in_order(ranks) for ranks in lines]
        return next(group for ranks, group in zip(lines, groups, strict=True) if ranks[place] == rank)


class Reducer:
    """Adds up gradients over the ranks that hold copies of a parameter: those of other pipelines, and stages that share
    it. All get the same bits. With a format, islands exchange them as packed blocks, with error feedback."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]],
        groups: Mapping[tuple[int, ...], dist.ProcessGroup], format: str | None = None,
    ) -> None:  # fmt: skip
        """Collective over the groups. `parameters`: those of this rank, by their first names in the whole model."""
        self._buckets: list[tuple[dist.ProcessGroup, list[nn.Parameter]]] = []
        self._packed: list[_Packed] = []
        for ranks, group in groups.items():
            held = [name for name in sorted(parameters) if holders[name] == ranks and parameters[name].requires_grad]
            lossy = [name for name in held if parameters[name].is_floating_point()]
            if lossy and format is not None and len(islands_of(group)) > 1:
                self._packed.append(_Packed(group, format, [parameters[name] for name in lossy]))
                held = [name for name in held if name not in lossy]
            self._buckets += [(group, bucket) for bucket in _buckets(parameters[name] for name in held)]

    def close(self) -> None:
        """Ends the connections of packed gradients. All ranks must call it."""
        for packed in self._packed:
            packed.exchange.close()

    @torch.no_grad()
    def reduce(self) -> None:
        """Reduces the gradients after the last backward pass of a step. Collective. If only some ranks used a
        parameter, the others count as zeros; a parameter that no rank used has no gradient."""
        pending = []
        for group, bucket in self._buckets:
            gradients = _gradients(bucket)
            flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), _used(bucket, gradients[0])])
            work = dist.all_reduce(flat, group=group, async_op=True)
            pending.append((work, flat, bucket, gradients))
        for packed in self._packed:
            packed.reduce()
        for work, flat, bucket, gradients in pending:
            if work is not None:
                work.wait()
            values, used = torch.split(flat, [len(flat) - len(bucket), len(bucket)])
            _take(bucket, gradients, values, used)


class _Packed:
    """Sends gradients of one group's parameters as packed blocks. The loss is added to the next step's gradients."""

    def __init__(self, group: dist.ProcessGroup, format: str, parameters: Sequence[nn.Parameter]) -> None:
        self._group, self._buckets = group, _buckets(parameters)
        self.exchange = Exchange(group, format, False, 1)
        self._residuals = [self._residual(bucket) for bucket in self._buckets]

    def _residual(self, bucket: Sequence[nn.Parameter]) -> torch.Tensor | None:
        led = self.exchange.led(sum(parameter.numel() for parameter in bucket))
        return None if led is None else torch.zeros(len(led), dtype=torch.float32, device=bucket[0].device)

    def reduce(self) -> None:
        used = [_used(bucket, bucket[0].new_empty(0, dtype=torch.float32)) for bucket in self._buckets]
        flags = torch.cat(used)
        work = dist.all_reduce(flags, group=self._group, async_op=True)
        sums = []
        for bucket, residual in zip(self._buckets, self._residuals, strict=True):
            gradients = _gradients(bucket)
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self.exchange.mean(flat, residual)
            sums.append((gradients, flat.mul_(self.exchange.size)))
        if work is not None:
            work.wait()
        flags_of = torch.split(flags, [len(bucket) for bucket in self._buckets])
        for bucket, (gradients, flat), own in zip(self._buckets, sums, flags_of, strict=True):
            _take(bucket, gradients, flat, own)


def _gradients(bucket: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]


def _used(bucket: Sequence[nn.Parameter], like: torch.Tensor) -> torch.Tensor:
    """Returns for each parameter whether this rank used it."""
    used = like.new_ones(len(bucket))
    for place, parameter in enumerate(bucket):
        if parameter.grad is None:
            used[place] = 0
    return used


def _take(
    bucket: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor], values: torch.Tensor, used: torch.Tensor
) -> None:
    """Gives used parameters views of `values` as gradients, because copying back would take a pass over all of them."""
    parts = torch.split(values, [gradient.numel() for gradient in gradients])
    for place, (parameter, gradient, part) in enumerate(zip(bucket, gradients, parts, strict=True)):
        if parameter.grad is not None or used[place] > 0:
            parameter.grad = part.view_as(gradient)


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Returns buckets of parameters of one type, of about BUCKET_BYTES each."""
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
    """Returns the norm of the gradients of all ranks' own `parameters`, the same bits on each. Collective."""
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
