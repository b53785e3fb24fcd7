# SPDX-License-Identifier: Apache-2.0
"""The process groups of a plan: each pipeline, each part of the batch, and ranks that hold copies of a parameter."""

import torch.distributed as dist
from torch import nn

from atoll._newer_torch import group_in_order
from atoll.pipeline.items import Parts, first_named, ties_of
from atoll.pipeline.plan import Plan


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
