# SPDX-License-Identifier: Apache-2.0
"""The assignment of items to ranks, found by the planner or given by the user."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from atoll import _C
from atoll.pipeline.items import Parts
from atoll.pipeline.schedules import Kind


@dataclass(frozen=True)
class Stage:
    """A range of items on one rank."""

    first: int
    last: int  # exclusive
    rank: int
    recompute: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.last)

    def shown(self, parts: Parts) -> str:
        """Returns the names of its items."""
        names = parts.names[self.first : self.last]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


@dataclass(frozen=True)
class Pipe:
    """One of several parallel pipelines, each with its part of the batch."""

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def ranks(self) -> list[int]:
        """The ranks in the order of their first stages."""
        return list(dict.fromkeys(stage.rank for stage in self.stages))


@dataclass(frozen=True)
class Plan:
    """All pipelines of a job."""

    pipes: tuple[Pipe, ...]
    answer: dict[str, Any] = field(default_factory=dict, compare=False)
    """The planner's answer (docs/plan-layers.md); empty for the user's own plan."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: dict[str, Any]) -> "Plan":
        pipes = [Pipe(tuple(Stage(**each) for each in pipe["stages"]), pipe["micro_batches"]) for pipe in text["pipes"]]
        return Plan(tuple(pipes), text.get("answer", {}))

    @property
    def shares(self) -> list[int]:
        """The micro-batches of each pipeline, by which the batch is divided."""
        return [pipe.micro_batches for pipe in self.pipes]

    def place(self, rank: int) -> int:
        """Returns the number of this rank's pipeline. Raises ValueError for a rank without a stage."""
        for number, pipe in enumerate(self.pipes):
            if rank in pipe.ranks:
                return number
        raise ValueError(f"rank {rank} has no stage in the plan: start the job without it")

    def check_loader(self, global_batch: int) -> None:
        """Raises ValueError if the micro-batches of all pipelines cannot have one size, and names the nearest batches;
        and if pipelines have different numbers of ranks: loaders agree among one rank of each pipeline, and some rank
        would have to do so for several."""
        total, lengths = sum(self.shares), [len(pipe.ranks) for pipe in self.pipes]
        if near := nearest_batches(global_batch, total):
            raise ValueError(
                f"a batch of {global_batch} samples cannot be divided into {total} micro-batches of one size (by "
                f"pipeline {self.shares}): use {near}"
            )
        if len(set(lengths)) > 1:
            raise ValueError(
                f"pipelines of {lengths} ranks cannot share a loader: give each its part with your own loader "
                "(pipe.place is its number, pipe.plan.shares are the parts), or make a plan whose pipelines have "
                "equally many ranks"
            )

    def table(self, parts: Parts) -> str:
        """Returns a line for each stage."""
        lines = []
        for number, pipe in enumerate(self.pipes):
            for index, stage in enumerate(pipe.stages):
                again = ", computed twice" if stage.recompute else ""
                lines.append(f"pipeline {number} stage {index} on rank {stage.rank}: {stage.shown(parts)}{again}")
        return "\n".join(lines)


def nearest_batches(samples: int, count: int) -> str:
    """Returns the nearest multiples of `count`, as text; "" if `samples` is one."""
    if samples > 0 and samples % count == 0:
        return ""
    below = samples // count * count
    return f"{below} or {below + count}" if below > 0 else f"{count}"


def from_counts(
    counts: Sequence[int], parts: Parts, ranks: Sequence[Sequence[int]], kind: Kind, micro_batches: Sequence[int],
    recompute: bool | Sequence[bool],
) -> Plan:  # fmt: skip
    """Returns a plan with the same stages in each pipeline. `counts` are blocks if they add up to the number of blocks
    (items before the first block are in the first stage, items after the last block in the last), or items. Raises
    ValueError if they add up to neither."""
    counts = [int(count) for count in counts]
    again = [recompute] * len(counts) if isinstance(recompute, bool) else list(recompute)
    if len(again) != len(counts):
        raise ValueError(f"recompute has {len(again)} values for {len(counts)} stages: pass one for each, or one")
    ends = _ends(counts, parts)
    pipes = []
    for line, share in zip(ranks, micro_batches, strict=True):
        kind.check(len(line), len(counts))
        holders = kind.ranks_of_stages(len(line), len(counts))
        stages = [
            Stage(first, last, line[holder], twice)
            for first, last, holder, twice in zip([0, *ends], ends, holders, again, strict=False)
        ]
        pipes.append(Pipe(tuple(stages), share))
    return Plan(tuple(pipes))


def _ends(counts: Sequence[int], parts: Parts) -> list[int]:
    """Returns the end of each stage, exclusive."""
    items, blocks = len(parts.items), parts.blocks
    if not counts or min(counts) < 0:
        raise ValueError(f"plan {list(counts)}: pass numbers of blocks of at least 0, one for each stage")
    ends = list(accumulate(counts))
    total = ends[-1]
    if total == len(blocks) and total != items and blocks:
        ends = [blocks[end - 1] + 1 if end else blocks[0] for end in ends]
        ends[-1] = items
    elif total != items:
        raise ValueError(
            f"plan {list(counts)} adds up to {total}, but the model has {len(blocks)} blocks ({items} items with those "
            f"around them): pass numbers that add up to {len(blocks)} or to {items}; nearest: {_nearest(counts, parts)}"
        )
    if empty := [stage for stage, (first, last) in enumerate(zip([0, *ends], ends, strict=False)) if first >= last]:
        raise ValueError(
            f"plan {list(counts)}: stage {empty[0]} is empty, but a stage holds at least one item; remove it and its "
            f"rank, or give it some; nearest: {_nearest(counts, parts)}"
        )
    return ends


def _nearest(counts: Sequence[int], parts: Parts) -> list[int]:
    """Returns numbers of the model's blocks (or items, if there are fewer blocks than stages) in proportion to
    `counts`, none of them 0."""
    stages = len(counts)
    wanted = max(stages, len(parts.blocks) if len(parts.blocks) >= stages else len(parts.items))
    return _C.apportion(counts if any(counts) else [1] * stages, wanted, [(1, None, 1)] * stages)


def equal_counts(parts: Parts, stages: int) -> list[int]:
    """Returns the blocks of each stage, which differ by at most one."""
    whole, rest = divmod(len(parts.blocks), stages)
    return [whole + (stage < rest) for stage in range(stages)]


def ranks_in_lines(ranks: int, replicas: int) -> list[list[int]]:
    """Returns by pipeline the ranks of its stages. Neighbours hold the same stage, so that replicas exchange data with
    near ranks. Raises ValueError if ranks are missing."""
    if replicas < 1 or ranks % replicas:
        fitting = [count for count in range(1, ranks + 1) if ranks % count == 0]
        nearest = min(fitting, key=lambda count: abs(count - replicas))
        raise ValueError(
            f"replicas={replicas} pipelines of equally many ranks cannot be made from {ranks} ranks: start "
            f"{max(1, replicas) * (ranks // max(1, replicas) + 1)} ranks, or use replicas={nearest}"
        )
    return [list(range(first, ranks, replicas)) for first in range(replicas)]


def check_plan(plan: Plan, parts: Parts, kind: Kind, ranks: int) -> None:
    """Raises ValueError for a plan that does not fit this model, schedule or job."""
    held = [rank for pipe in plan.pipes for rank in pipe.ranks]
    if missing := sorted(set(held) - set(range(ranks))):
        raise ValueError(
            f"the plan needs rank {missing[0]}, but the job has ranks 0 to {ranks - 1}: start {max(held) + 1} ranks, "
            f"or make a plan for these; {_nearest_for(plan, parts, kind, ranks)}"
        )
    if twice := sorted({rank for rank in held if held.count(rank) > 1}):
        raise ValueError(f"rank {twice[0]} is in two pipelines of the plan: give it stages of one")
    for pipe in plan.pipes:
        _check_pipe(pipe, parts, kind)
    _check_shares(plan, kind)
    if idle := sorted(set(range(ranks)) - set(held)):
        raise ValueError(f"rank {idle[0]} has no stage in the plan: start the job without it, or give it a stage")


def _nearest_for(plan: Plan, parts: Parts, kind: Kind, ranks: int) -> str:
    """Describes a plan to use if ranks are missing: equally many blocks for the present ranks, in as many of the plan's
    pipelines as divide them, and a number of micro-batches that the schedule supports; for fewer ranks if the model
    does not have enough items."""
    most = max((len(pipe.stages) // max(1, len(pipe.ranks)) for pipe in plan.pipes), default=1)
    for used in range(ranks, 0, -1):
        replicas = max(count for count in range(1, len(plan.pipes) + 1) if used % count == 0)
        positions = used // replicas
        stages = positions * (kind.chunks or max(1, min(most, len(parts.items) // positions)))
        if stages <= len(parts.items):
            break
    else:
        return f"no plan of this schedule has {len(parts.items)} items"
    counts = equal_counts(parts, stages) if len(parts.blocks) >= stages else _nearest([1] * stages, parts)
    wanted = max(1, sum(plan.shares) // replicas)
    able = (count for count in range(1, wanted + stages + positions + 1) if kind.is_possible(count, positions, stages))
    micro_batches = min(able, key=lambda count: abs(count - wanted))
    fewer = "" if used == ranks else f"{used} ranks with "
    side_by_side = f", replicas={replicas}" if replicas > 1 else ""
    return f"nearest: {fewer}plan={counts}, micro_batches={micro_batches}{side_by_side}"


def _check_pipe(pipe: Pipe, parts: Parts, kind: Kind) -> None:
    ends = [0, *(stage.last for stage in pipe.stages)]
    if not pipe.stages or any(stage.first != end for stage, end in zip(pipe.stages, ends, strict=False)):
        raise ValueError("the plan's stages are not contiguous: each must start with the item after the previous stage")
    if any(stage.first >= stage.last for stage in pipe.stages) or ends[-1] != len(parts.items):
        raise ValueError(
            f"the plan is for {ends[-1]} items, in stages of at least one, but the model has {len(parts.items)}: make "
            "a plan for this model"
        )
    positions = pipe.ranks
    kind.check(len(positions), len(pipe.stages))
    wanted = [positions[place] for place in kind.ranks_of_stages(len(positions), len(pipe.stages))]
    if [stage.rank for stage in pipe.stages] != wanted:
        raise ValueError(
            f"schedule {kind.name!r} has its stages on ranks {wanted}, but the plan on "
            f"{[stage.rank for stage in pipe.stages]}: pass a plan for this schedule"
        )
    if kind.splits_backward and any(stage.recompute for stage in pipe.stages):
        raise ValueError(
            f"schedule {kind.name!r} computes gradients of parameters later, and PyTorch would recompute a block for "
            "each of them: use recompute=False, or schedule '1f1b', 'gpipe' or 'interleaved'"
        )


def _check_shares(plan: Plan, kind: Kind) -> None:
    for number, pipe in enumerate(plan.pipes):
        try:
            kind.check_micro_batches(pipe.micro_batches, len(pipe.ranks), len(pipe.stages))
        except ValueError as error:
            near = nearest_shares(plan, kind) if len(plan.pipes) > 1 else None
            if near is None:
                raise
            raise ValueError(
                f"pipeline {number} of the plan: {error}; nearest for all pipelines and the same batch: {near}"
            ) from None


def nearest_shares(plan: Plan, kind: Kind) -> list[int] | None:
    """Returns supported micro-batches of each pipeline, near the plan's and with the same total; None if not found."""
    found = _moved_shares(plan, kind, whole_rounds=False)
    # Whole rounds can always be moved from one pipeline to another.
    return _moved_shares(plan, kind, whole_rounds=True) if found is None else found


def _moved_shares(plan: Plan, kind: Kind, whole_rounds: bool) -> list[int] | None:
    """Makes each share a supported one, and then restores the sum by the smallest moves."""
    total = sum(plan.shares)

    def is_able(number: int, count: int) -> bool:
        pipe = plan.pipes[number]
        positions = len(pipe.ranks)
        return kind.is_possible(count, positions, len(pipe.stages)) and not (whole_rounds and count % positions)

    def beside(number: int, count: int, step: int) -> int | None:
        ends = range(count + step, total + 1) if step > 0 else range(count + step, 0, step)
        return next((each for each in ends if is_able(number, each)), None)

    counts: list[int] = []
    for number, share in enumerate(plan.shares):
        near = share if is_able(number, share) else beside(number, share, -1) or beside(number, share, 1)
        if near is None:
            return None
        counts.append(near)
    while gap := total - sum(counts):
        moves = []
        for number, count in enumerate(counts):
            other = beside(number, count, 1 if gap > 0 else -1)
            if other is not None and abs(other - count) <= abs(gap):
                moves.append((abs(other - plan.shares[number]), number, other))
        if not moves:
            return None
        _, number, other = min(moves)
        counts[number] = other
    return counts
