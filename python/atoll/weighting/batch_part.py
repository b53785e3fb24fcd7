# SPDX-License-Identifier: Apache-2.0
"""A rank's batch as a part of its step."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Part:
    """One batch on this rank. A step of all ranks lies between two synchronisations of gradients, and has one part on
    this rank, or several if gradients accumulate. The loss of a part is the mean over its elements: samples, or
    whatever the user counts."""

    own: float
    """Elements of this batch. 0: the batch only keeps the rank in step with the others, and does not count."""
    total_of: Callable[[], float]
    """Elements of the whole step on all ranks. May wait for other ranks, so it is called as late as possible."""
    is_first: bool = True
    is_last: bool = True
    is_used: bool = False
    """Whether gradients were scaled by this part's share."""
    is_computed: bool = False
    """Whether the model processed it, or another batch in its place, with gradients enabled, not in an evaluation."""

    def share(self) -> float:
        """Returns the factor of the gradient of this part's loss before gradients are summed over ranks. Raises the
        errors of `total_of` on all ranks, because ranks whose parts do not count call it too."""
        total = self.total_of()
        return self.own / total if self.own else 0.0


def part_of(own: float, total: float) -> Part:
    """Returns the only part of a step on this rank, with a known total."""
    return Part(own, lambda: total)
