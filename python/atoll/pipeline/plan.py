# SPDX-License-Identifier: Apache-2.0
"""Who holds which items: what a planner found, or what a user says."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll.pipeline.items import Parts
from atoll.pipeline.schedules import Kind


@dataclass(frozen=True)
class Stage:
    """A range of items on one rank."""

    first: int
    last: int  # half open
    rank: int
    recompute: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.last)


@dataclass(frozen=True)
class Pipe:
    """One of the pipelines that work side by side, each with its part of the batch."""

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def ranks(self) -> list[int]:
        """In the order in which the pipeline first meets them."""
        return list(dict.fromkeys(stage.rank for stage in self.stages))


@dataclass(frozen=True)
class Plan:
    """All pipelines of a job."""

    pipes: tuple[Pipe, ...]
    answer: dict[str, Any] = field(default_factory=dict, compare=False)
    """What the planner said (docs/plan-layers.md); empty for a plan of the user's."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: dict[str, Any]) -> "Plan":
        pipes = tuple(
            Pipe(tuple(Stage(**stage) for stage in pipe["stages"]), pipe["micro_batches"]) for pipe in text["pipes"]
        )
        return Plan(pipes, text.get("answer", {}))

    @property
    def shares(self) -> list[int]:
        """Micro-batches of each pipeline, which is how the batch is divided."""
        return [pipe.micro_batches for pipe in self.pipes]

    def place(self, rank: int) -> int:
        """The number of this rank's pipeline. Raises ValueError for a rank that has no stage."""
        for number, pipe in enumerate(self.pipes):
            if rank in pipe.ranks:
                return number
        raise ValueError(f"rank {rank} has no stage in the plan: start the job without it")

    def table(self, parts: Parts) -> str:
        """A line for each stage."""
        lines = []
        for number, pipe in enumerate(self.pipes):
            for index, stage in enumerate(pipe.stages):
                names = parts.names[stage.first : stage.last]
                held = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
                again = ", computed twice" if stage.recompute else ""
                lines.append(f"pipeline {number} stage {index} on rank {stage.rank}: {held}{again}")
        return "\n".join(lines)


def from_counts(
    counts: Sequence[int], parts: Parts, ranks: Sequence[Sequence[int]], kind: Kind, micro_batches: Sequence[int],
    recompute: bool | Sequence[bool],
) -> Plan:  # fmt: skip
    """The same stages in each pipeline: `counts` are blocks, where they add up to those (what comes before the first
    block is with the first stage, what comes after the last one with the last), or items. Raises ValueError where they
    add up to neither."""
    counts = [int(count) for count in counts]
    again = [recompute] * len(counts) if isinstance(recompute, bool) else list(recompute)
    if len(again) != len(counts):
        raise ValueError(f"recompute has {len(again)} values for {len(counts)} stages: give one for each, or one")
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
    """Behind which item each stage ends."""
    items, blocks = len(parts.items), parts.blocks
    if not counts or min(counts) < 0:
        raise ValueError(f"plan {list(counts)}: give numbers of blocks of at least 0, one for each stage")
    ends, total = [], 0
    for count in counts:
        total += count
        ends.append(total)
    if total == len(blocks) and total != items and blocks:
        ends = [blocks[end - 1] + 1 if end else blocks[0] for end in ends]
        ends[-1] = items
    elif total != items:
        raise ValueError(
            f"plan {list(counts)} has {total}: the model has {len(blocks)} blocks ({items} items with what is around "
            f"them), so give numbers that add up to {len(blocks)} or to {items}; nearest: {_nearest(counts, parts)}"
        )
    empty = [stage for stage, (first, last) in enumerate(zip([0, *ends], ends, strict=False)) if first >= last]
    if empty:
        raise ValueError(
            f"plan {list(counts)}: stage {empty[0]} is empty, and a stage holds at least one item; leave it and its "
            f"rank out, or give it some; nearest: {_nearest(counts, parts)}"
        )
    return ends


def _nearest(counts: Sequence[int], parts: Parts) -> list[int]:
    """Numbers of the model's blocks (of its items, where those are fewer than stages) in the proportion of `counts`,
    none 0."""
    wanted = len(parts.blocks) if len(parts.blocks) >= len(counts) else len(parts.items)
    near = [max(1, count) for count in counts]
    while sum(near) != wanted and (sum(near) < wanted or max(near) > 1):
        shares = [count * wanted / max(1, sum(counts)) for count in counts]
        excess = [have - share for have, share in zip(near, shares, strict=True)]
        if sum(near) < wanted:
            near[excess.index(min(excess))] += 1
        else:
            able = [index for index, have in enumerate(near) if have > 1]
            near[max(able, key=lambda index: excess[index])] -= 1
    return near


def equal_counts(parts: Parts, stages: int) -> list[int]:
    """Blocks of each stage, as many as the others or one more."""
    whole, rest = divmod(len(parts.blocks), stages)
    return [whole + (stage < rest) for stage in range(stages)]


def ranks_in_lines(ranks: int, replicas: int) -> list[list[int]]:
    """By pipeline the ranks of its stages: neighbours hold the same stage, so that what replicas exchange stays near.
    Raises ValueError where ranks are missing."""
    if replicas < 1 or ranks % replicas:
        fitting = [count for count in range(1, ranks + 1) if ranks % count == 0]
        nearest = min(fitting, key=lambda count: abs(count - replicas))
        raise ValueError(
            f"replicas={replicas} pipelines of equally many ranks cannot be made of {ranks} ranks: start "
            f"{max(1, replicas) * (ranks // max(1, replicas) + 1)} ranks, or give replicas={nearest}"
        )
    return [list(range(first, ranks, replicas)) for first in range(replicas)]


def check_plan(plan: Plan, parts: Parts, kind: Kind, ranks: int) -> None:
    """Raises ValueError for a plan that is not for this model, schedule or job."""
    held = [rank for pipe in plan.pipes for rank in pipe.ranks]
    if missing := sorted(set(held) - set(range(ranks))):
        raise ValueError(
            f"the plan needs rank {missing[0]}, and the job has ranks 0 to {ranks - 1}: start {max(held) + 1} ranks, "
            f"or make a plan for these; {_nearest_for(plan, parts, kind, ranks)}"
        )
    if twice := sorted({rank for rank in held if held.count(rank) > 1}):
        raise ValueError(f"rank {twice[0]} is in two pipelines of the plan: give it stages of one")
    for pipe in plan.pipes:
        _check_pipe(pipe, parts, kind)
    _check_shares(plan, kind)
    idle = sorted(set(range(ranks)) - set(held))
    if idle:
        raise ValueError(f"rank {idle[0]} has no stage in the plan: start the job without it, or give it a stage")


def _nearest_for(plan: Plan, parts: Parts, kind: Kind, ranks: int) -> str:
    """What to give instead where ranks are missing: equally many blocks for those that are there, in as many of the
    plan's pipelines as divide them, and a number of micro-batches that the schedule can have. For fewer ranks, where
    the model has not so many items."""
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
        raise ValueError("the plan's stages do not follow each other: each begins with the item behind the one before")
    if any(stage.first >= stage.last for stage in pipe.stages) or ends[-1] != len(parts.items):
        raise ValueError(
            f"the plan is for {ends[-1]} items, in stages of at least one; the model has {len(parts.items)}: make a "
            "plan for this model"
        )
    positions = pipe.ranks
    kind.check(len(positions), len(pipe.stages))
    wanted = [positions[place] for place in kind.ranks_of_stages(len(positions), len(pipe.stages))]
    if [stage.rank for stage in pipe.stages] != wanted:
        raise ValueError(
            f"schedule {kind.name!r} has its stages on ranks {wanted}, the plan on "
            f"{[stage.rank for stage in pipe.stages]}: give the plan of this schedule"
        )
    if kind.splits_backward and any(stage.recompute for stage in pipe.stages):
        raise ValueError(
            f"schedule {kind.name!r} computes gradients of parameters later, and PyTorch would compute a block again "
            "for each of them: give recompute=False, or schedule '1f1b', 'gpipe' or 'interleaved'"
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
    """Micro-batches of each pipeline that the schedule can have, near the plan's and as many in all; None where none
    are found."""
    for whole_rounds in (False, True):  # those of whole rounds can always be moved from one pipeline to another
        found = _moved_shares(plan, kind, whole_rounds)
        if found is not None:
            return found
    return None


def _moved_shares(plan: Plan, kind: Kind, whole_rounds: bool) -> list[int] | None:
    """Each share is made a possible one, and then the smallest moves give the sum again."""
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
