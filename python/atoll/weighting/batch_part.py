# SPDX-License-Identifier: Apache-2.0
"""A rank's batch as a part of its step, and its elements: samples, or what the user counts, such as valid tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(eq=False)
class Part:
    """One batch on this rank. A step of all ranks lies between two synchronisations of gradients, and has one part on
    this rank, or several if gradients accumulate. The loss of a part is the mean over its elements."""

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


class Total:
    """The sum over ranks of their counts for a step. The reduction starts at construction, and a call waits for it."""

    def __init__(self, own: float, group: dist.ProcessGroup, device: torch.device) -> None:
        self._sum = torch.tensor([own], dtype=torch.float64, device=device)
        self._work = dist.all_reduce(self._sum, group=group, async_op=True)
        self._value: float | None = None

    def __call__(self) -> float:
        """Returns the sum. Raises ValueError on all ranks if it is 0."""
        if self._value is None:
            assert self._work is not None
            self._work.wait()
            self._value = float(self._sum.item())
        if self._value <= 0:
            raise ValueError("no rank counts any elements in this step: remove such samples from the dataset")
        return self._value


def counted(elements: Callable[[Any], float], batches: Sequence[Any], samples: Sequence[int]) -> list[float]:
    """Returns the elements of each batch; 0 if no sample of it counts. Raises ValueError for an invalid count."""
    counts = [float(elements(batch)) if size else 0.0 for batch, size in zip(batches, samples, strict=True)]
    for count in counts:
        if not 0 <= count < float("inf"):
            raise ValueError(
                f"elements(batch) returned {count}: expected the number of elements that the batch's loss is the "
                "mean of"
            )
    return counts
