# SPDX-License-Identifier: Apache-2.0
"""Means over a step of several batches."""

import torch
import torch.distributed as dist

from atoll.weighting.batch_part import Part


class StepMeans:
    """Adds up a rank's values over the batches of a step, and over all ranks at the last batch. Several values per
    batch are told apart by their order."""

    def __init__(self) -> None:
        self._sums: list[tuple[torch.Tensor, int]] = []  # and the number of batches
        self._place, self._batches, self._is_last = 0, 0, True

    def begin(self, part: Part) -> None:
        """Starts a batch, to which the next values belong."""
        if part.is_first:
            self._sums, self._batches = [], 0
        self._place, self._batches, self._is_last = 0, self._batches + 1, part.is_last

    def add(self, weighted: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Returns the sum over the step's batches and ranks at the last batch, NaN before. Collective at the last."""
        place, self._place = self._place, self._place + 1
        if place < len(self._sums):
            before, count = self._sums[place]
            self._sums[place] = (before + weighted, count + 1)
        else:
            self._sums.append((weighted, 1))
        total, count = self._sums[place]
        if not self._is_last:
            return torch.full_like(total, float("nan"))
        if count < self._batches:
            raise RuntimeError(
                f"loader.mean was called for {count} of this step's {self._batches} batches: call it for each of them"
            )
        total = total.clone()
        dist.all_reduce(total, group=group)
        return total
