# SPDX-License-Identifier: Apache-2.0
"""Iterable datasets, read by position."""

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

End = object()


class Stream(Dataset[Any]):
    """An iterable dataset behind the interface of a map-style one: its keys are (epoch, position), and positions grow.

    The protocol: every rank, and every worker of its loader, iterates over the same samples in the same order and keeps
    those of its share. A dataset with `skip_samples(iterator, count)` is asked to pass over others' samples; without it
    they are read and dropped. `set_epoch(epoch)`, where a dataset has it, is called before it is iterated over.

    Each process has an iterator of its own, also where it is forked while another one reads."""

    def __init__(self, dataset: IterableDataset[Any], samples: int) -> None:
        self.dataset, self._samples = dataset, samples
        self._reading: tuple[int, int] | None = None  # an epoch, in a process
        self._next = 0
        self._iterator: Iterator[Any] = iter(())
        self._last: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the iterator, which can seldom be copied and belongs to one process."""
        return {**vars(self), "_reading": None, "_next": 0, "_iterator": iter(()), "_last": None}

    def anew(self) -> "Stream":
        """The same samples, read by an iterator of its own."""
        return Stream(self.dataset, self._samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, position = key
        is_reading = self._reading == (epoch, os.getpid())
        if is_reading and position == self._next - 1:
            return self._last  # again, to keep a rank in step
        if not is_reading or position < self._next:
            self._begin(epoch)
        self._pass_over(position - self._next)
        sample = next(self._iterator, End)
        if sample is End:
            raise self._too_short(position)
        self._next, self._last = position + 1, sample
        return sample

    def _begin(self, epoch: int) -> None:
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        self._reading, self._iterator, self._next = (epoch, os.getpid()), iter(self.dataset), 0

    def _pass_over(self, count: int) -> None:
        skip = getattr(self.dataset, "skip_samples", None)
        if count and skip is not None:
            skip(self._iterator, count)
            return
        for passed in range(count):
            if next(self._iterator, End) is End:
                raise self._too_short(self._next + passed)

    def _too_short(self, position: int) -> ValueError:
        return ValueError(
            f"the iterable dataset ended before sample {position} of {self._samples}: give "
            "atoll.DataLoader(samples=...) what it really holds, the same on all ranks"
        )


def as_positions(dataset: Any, samples: int | None) -> Any:
    """The dataset itself when it is map-style, else a Stream over it. Raises ValueError or TypeError naming what is
    missing."""
    if isinstance(dataset, IterableDataset):
        if samples is None and not hasattr(dataset, "__len__"):
            raise ValueError(
                "an iterable dataset without a length: give atoll.DataLoader(samples=...), samples per epoch"
            )
        return Stream(dataset, len(dataset) if samples is None else samples)  # type: ignore[arg-type]
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"{type(dataset).__name__} is no dataset: it needs __len__ and __getitem__, or IterableDataset")
    if len(dataset) == 0:
        raise ValueError("the dataset is empty")
    return dataset
