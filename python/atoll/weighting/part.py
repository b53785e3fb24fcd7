# SPDX-License-Identifier: Apache-2.0
"""What a rank's batch is of its step."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Part:
    """One batch on this rank: what there is between two synchronisations of gradients is one step of all ranks, and has
    one such part, or several where gradients accumulate. The loss of a part is the mean over its elements: samples, or
    whatever the user counts."""

    own: float
    """Elements of this batch. 0: it only keeps the rank in step with the others, and counts nothing."""
    total_of: Callable[[], float]
    """Elements of the whole step on all ranks. May wait for other ranks, so it is asked as late as possible."""
    is_first: bool = True
    is_last: bool = True
    is_used: bool = False
    """Whether gradients were scaled by it."""
    is_computed: bool = False
    """Whether the model had it, or another batch in its place, with gradients enabled: not in an evaluation."""

    def share(self) -> float:
        """By what the gradient of this part's loss is multiplied before gradients are summed over ranks. Raises what
        `total_of` does, on all ranks alike: it is asked by those too that count nothing."""
        total = self.total_of()
        return self.own / total if self.own else 0.0


def part_of(own: float, total: float) -> Part:
    """The only part of a step on this rank, with what is known already."""
    return Part(own, lambda: total)
