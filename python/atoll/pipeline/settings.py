# SPDX-License-Identifier: Apache-2.0
"""How devices are measured and what the planner may use."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Of atoll.pipeline.Pipeline; equal on all ranks, but for memory_bytes."""

    memory_bytes: int | None = None
    """What this rank's stages may use; a plan of the user's that needs more is refused. Without it, with plan="auto"
    what an accelerator says of itself, and otherwise no limit. May differ between ranks."""
    margin: float = 0.1
    """Part of each memory that stays free."""
    optimiser_states: float = 2
    """Numbers that the optimizer keeps for each parameter: 2 for Adam, 1 for SGD with momentum, 0 for SGD."""
    chunks: int = 2
    """Stages on each rank with plan="equal", of schedules that can have any number, and with "auto" of "interleaved",
    where the items and the memories allow it; other schedules have one on each rank then."""
    sizes: Sequence[int] | None = None
    """Samples of a micro-batch to measure and to choose from, where micro_batches is not given. Without it 1, 2, 4 and
    8, as far as they divide the batch."""
    reuse: bool = True
    """Whether a profile of an earlier run of the same model on the same hardware is taken."""

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"Settings(memory_bytes={self.memory_bytes}): give bytes above 0, or leave it out")
        if not 0 <= self.margin < 1:
            raise ValueError(f"Settings(margin={self.margin}): give a part of the memory, at least 0 and below 1")
        if self.optimiser_states < 0:
            raise ValueError(f"Settings(optimiser_states={self.optimiser_states}): give a number of at least 0")
        if self.chunks < 1:
            raise ValueError(f"Settings(chunks={self.chunks}): give at least 1 stage on each rank")
