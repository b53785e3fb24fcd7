# SPDX-License-Identifier: Apache-2.0
"""How devices are measured, and what the planner may use."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Settings of atoll.pipeline.Pipeline. They must be equal on all ranks, except memory_bytes."""

    memory_bytes: int | None = None
    """The memory that this rank's stages may use; raises ValueError for a user's plan that needs more. Default: with
    plan="auto" the memory that an accelerator reports, otherwise no limit. May differ between ranks."""
    margin: float = 0.1
    """The part of each memory to keep free."""
    optimiser_states: float = 2
    """The number of values that the optimizer keeps per parameter: 2 for Adam, 1 for SGD with momentum, 0 for SGD."""
    chunks: int = 2
    """Stages on each rank, with plan="equal" for schedules that support any number, and with "auto" for "interleaved"
    if items and memories allow it; other schedules then have one stage on each rank."""
    sizes: Sequence[int] | None = None
    """Micro-batch sizes to measure and to choose from if micro_batches is not given. Default: those of 1, 2, 4 and 8
    that divide the batch."""
    reuse: bool = True
    """Whether a profile of an earlier run of the same model on the same hardware is used."""

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"Settings(memory_bytes={self.memory_bytes}): must be above 0; omit it for no limit")
        if not 0 <= self.margin < 1:
            raise ValueError(f"Settings(margin={self.margin}): must be a part of the memory, at least 0 and below 1")
        if self.optimiser_states < 0:
            raise ValueError(f"Settings(optimiser_states={self.optimiser_states}): must be at least 0")
        if self.chunks < 1:
            raise ValueError(f"Settings(chunks={self.chunks}): must be at least 1 stage on each rank")
