# SPDX-License-Identifier: Apache-2.0
"""Weights by elements that are not samples, such as valid tokens: counts them in batches, and adds them over ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


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
