# SPDX-License-Identifier: Apache-2.0
"""Weights by elements that are not samples, such as valid tokens: counted in the batches, added up over ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Total:
    """The sum over ranks of what each counted for a step; on its way since it was made, waited for where it is
    asked."""

    def __init__(self, own: float, group: dist.ProcessGroup, device: torch.device) -> None:
        self._sum = torch.tensor([own], dtype=torch.float64, device=device)
        self._work = dist.all_reduce(self._sum, group=group, async_op=True)
        self._value: float | None = None

    def __call__(self) -> float:
        """Raises ValueError on all ranks when none has any."""
        if self._value is None:
            assert self._work is not None
            self._work.wait()
            self._value = float(self._sum.item())
        if self._value <= 0:
            raise ValueError("no rank counts any element in this step: leave such samples out of the dataset")
        return self._value


def counted(elements: Callable[[Any], float], batches: Sequence[Any], samples: Sequence[int]) -> list[float]:
    """Elements of each batch; 0 where no sample of it counts. Raises ValueError on a count that is none."""
    counts = [float(elements(batch)) if size else 0.0 for batch, size in zip(batches, samples, strict=True)]
    for count in counts:
        if not 0 <= count < float("inf"):
            raise ValueError(
                f"elements(batch) gave {count}: expected how many elements the batch's loss is the mean of"
            )
    return counts
