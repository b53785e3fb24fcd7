# SPDX-License-Identifier: Apache-2.0
"""The schedules of torch.distributed.pipelining by name, and what each of them needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.pipelining import schedules as of_torch


@dataclass(frozen=True)
class Kind:
    """One schedule."""

    name: str
    build: Callable[..., Any]
    chunks: int | None
    """Stages on each rank; None: any number."""
    is_v: bool = False
    """Whether the stages go back over the ranks instead of beginning anew with the first."""
    splits_backward: bool = False
    """Whether gradients of parameters are computed later than those of inputs."""
    needs_stages: bool = False
    """Whether a step must have as many micro-batches as stages."""
    has_rounds: bool = False
    """Whether micro-batches come in rounds of as many as there are ranks, or a little more."""

    def ranks_of_stages(self, positions: int, stages: int) -> list[int]:
        """The position of the rank that holds each stage."""
        if not self.is_v:
            return [stage % positions for stage in range(stages)]
        rounds = [divmod(stage, positions) for stage in range(stages)]
        return [positions - 1 - place if turn % 2 else place for turn, place in rounds]

    def check(self, positions: int, stages: int) -> None:
        """Raises ValueError where the stages are not for this schedule on so many ranks."""
        if stages % positions or stages < positions:
            raise ValueError(
                f"{stages} stages on {positions} ranks: give each rank equally many, {positions} or a multiple of it"
            )
        chunks = stages // positions
        if self.chunks is not None and chunks != self.chunks:
            others = [kind.name for kind in KINDS.values() if kind.chunks in (None, chunks)]
            raise ValueError(
                f"schedule {self.name!r} has {self.chunks} stages on each rank, the plan has {chunks} (stages on "
                f"{positions} ranks: {stages}): give a plan of {self.chunks * positions} stages, or schedule="
                f"{' or '.join(map(repr, others))}"
            )

    def check_micro_batches(self, count: int, positions: int, stages: int) -> None:
        """Raises ValueError for a number of micro-batches that the schedule cannot have, with the nearest ones."""
        if self.is_possible(count, positions, stages):
            return
        below = next((n for n in range(count - 1, 0, -1) if self.is_possible(n, positions, stages)), None)
        above = next(n for n in range(max(0, count) + 1, max(0, count) + stages + positions + 2)
                     if self.is_possible(n, positions, stages))  # fmt: skip
        near = f"{above}" if below is None else f"{below} or {above}"
        raise ValueError(
            f"schedule {self.name!r} cannot divide a step of {stages} stages into {count} micro-batches: give {near}"
        )

    def is_possible(self, count: int, positions: int, stages: int) -> bool:
        """Whether the schedule can have so many micro-batches."""
        if count < 1 or (self.needs_stages and count < stages):
            return False
        return not self.has_rounds or count % max(1, count // positions) == 0


KINDS = {
    kind.name: kind
    for kind in (
        Kind("1f1b", of_torch.Schedule1F1B, 1, needs_stages=True),
        Kind("gpipe", of_torch.ScheduleGPipe, 1),
        Kind("interleaved", of_torch.ScheduleInterleaved1F1B, None, has_rounds=True),
        Kind("zero-bubble", of_torch.ScheduleInterleavedZeroBubble, None, splits_backward=True, has_rounds=True),
        Kind("zbv", of_torch.ScheduleZBVZeroBubble, 2, is_v=True, splits_backward=True),
    )
}


def schedule_of(name: str) -> Kind:
    """Raises ValueError for a name that is not known."""
    if name not in KINDS:
        raise ValueError(f"schedule {name!r} is not known: {', '.join(KINDS)}")
    return KINDS[name]
