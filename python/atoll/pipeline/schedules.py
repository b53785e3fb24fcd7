# SPDX-License-Identifier: Apache-2.0
"""The schedules of torch.distributed.pipelining by name, and their requirements."""

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
    """Whether the stages return over the ranks in reverse instead of starting again with the first rank."""
    splits_backward: bool = False
    """Whether gradients of parameters are computed after those of inputs."""
    needs_stages: bool = False
    """Whether a step must have at least as many micro-batches as stages."""
    has_rounds: bool = False
    """Whether micro-batches run in rounds of as many as there are ranks, or slightly more."""

    def ranks_of_stages(self, positions: int, stages: int) -> list[int]:
        """Returns the position of the rank of each stage."""
        if not self.is_v:
            return [stage % positions for stage in range(stages)]
        rounds = [divmod(stage, positions) for stage in range(stages)]
        return [positions - 1 - place if turn % 2 else place for turn, place in rounds]

    def check(self, positions: int, stages: int) -> None:
        """Raises ValueError if the schedule does not support this number of stages and ranks."""
        if stages % positions or stages < positions:
            raise ValueError(
                f"{stages} stages on {positions} ranks: give each rank equally many, {positions} or a multiple in total"
            )
        chunks = stages // positions
        if self.chunks is not None and chunks != self.chunks:
            others = [kind.name for kind in KINDS.values() if kind.chunks in (None, chunks)]
            raise ValueError(
                f"schedule {self.name!r} has {self.chunks} stages on each rank, but the plan has {chunks} (stages on "
                f"{positions} ranks: {stages}): pass a plan of {self.chunks * positions} stages, or schedule="
                f"{' or '.join(map(repr, others))}"
            )

    def check_micro_batches(self, count: int, positions: int, stages: int) -> None:
        """Raises ValueError for a number of micro-batches that the schedule does not support, and names the nearest."""
        if self.is_possible(count, positions, stages):
            return
        below = next((n for n in range(count - 1, 0, -1) if self.is_possible(n, positions, stages)), None)
        above = next(n for n in range(max(0, count) + 1, max(0, count) + stages + positions + 2)
                     if self.is_possible(n, positions, stages))  # fmt: skip
        near = f"{above}" if below is None else f"{below} or {above}"
        raise ValueError(
            f"schedule {self.name!r} cannot divide a step of {stages} stages into {count} micro-batches: use {near}"
        )

    def is_possible(self, count: int, positions: int, stages: int) -> bool:
        """Returns whether the schedule supports `count` micro-batches."""
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
    """Returns the schedule. Raises ValueError for an unknown name."""
    if name not in KINDS:
        raise ValueError(f"unknown schedule {name!r}: choose from {', '.join(KINDS)}")
    return KINDS[name]
