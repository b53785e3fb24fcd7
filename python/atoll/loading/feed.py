# SPDX-License-Identifier: Apache-2.0
"""The batch sampler that requests this rank's slices of the coming steps from the data loader's workers."""

from collections import deque
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from atoll.loading.planner import Planner
from atoll.loading.windows import Divided, Slice, cut, next_window

Key = int | tuple[int, int]


class Feed(Sampler[list[Key]]):
    """A batch sampler. Workers run ahead, so it records what it has handed out: new plans can only apply afterwards."""

    def __init__(self, planner: Planner, rank: int, drop_last: bool) -> None:
        self._planner, self._rank, self._drop_last = planner, rank, drop_last
        self.handed: deque[Slice] = deque()
        self.next_step = 0
        """The first step, counted from the start of the training, to which a new plan may apply."""

    def begin(
        self, order: torch.Tensor, position: int, step: int, epoch_of_keys: int | None, divided: Divided | None = None
    ) -> None:
        """Sets what to iterate over next: an epoch's order from a position on, whose first step has number `step`. Keys
        are indices, or (epoch, position) if an epoch is given. `divided`: the order is of this rank's own samples."""
        self._order, self._position, self._epoch, self._divided = order, position, epoch_of_keys, divided
        self.next_step = step
        self.handed.clear()

    def __iter__(self) -> Iterator[list[Key]]:
        for of in self._of_all() if self._divided is None else self._of_own(self._divided):
            self.handed.append(of)
            yield self._keys(of)

    def _of_own(self, divided: Divided) -> Iterator[Slice]:
        for step in range(divided.steps_before(self._position), divided.steps):
            self.next_step += 1
            yield from divided.cut(step, self._rank, self._planner.batches)

    def _of_all(self) -> Iterator[Slice]:
        position = self._position
        while window := next_window(len(self._order), position, self._planner.samples(self.next_step), self._drop_last):
            shares, parts = self._planner.cut(self.next_step, window.samples)
            position = window.last
            self.next_step += 1
            yield from cut(window, shares, self._rank, parts)
        if position < len(self._order):
            self.next_step += 1  # this step is dropped, even if a new plan would make it small enough

    def _keys(self, of: Slice) -> list[Key]:
        if self._epoch is not None:
            return [(self._epoch, position) for position in range(of.first, of.last)]
        indices: list[Key] = self._order[of.first : of.last].tolist()
        return indices
