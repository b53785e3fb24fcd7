# SPDX-License-Identifier: Apache-2.0
"""Iterable datasets, read by position."""

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

End = object()


class Stream(Dataset[Any]):
    """An iterable dataset with the interface of a map-style one: its keys are (epoch, position), with increasing
    positions.

    The protocol: every rank, and every worker of its loader, iterates over the same samples in the same order and keeps
    those of its share. If the dataset has `skip_samples(iterator, count)`, it is called to skip the samples of others;
    otherwise they are read and dropped. `set_epoch(epoch)`, if the dataset has it, is called before an iteration.

    Each process has its own iterator, even if it is forked while another one reads."""

    def __init__(self, dataset: IterableDataset[Any], samples: int) -> None:
        self.dataset, self._samples = dataset, samples
        self._reading: tuple[int, int] | None = None  # the epoch and the process
        self._next = 0
        self._iterator: Iterator[Any] = iter(())
        self._last: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the iterator, which can rarely be copied and belongs to one process."""
        return {**vars(self), "_reading": None, "_next": 0, "_iterator": iter(()), "_last": None}

    def reopened(self) -> "Stream":
        """Returns the same samples with a separate iterator."""
        return Stream(self.dataset, self._samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, position = key
        is_reading = self._reading == (epoch, os.getpid())
        if is_reading and position == self._next - 1:
            return self._last  # again, for a rank that only keeps in step
        if not is_reading or position < self._next:
            self._begin(epoch)
        self._pass_over(position - self._next)
        sample = next(self._iterator, End)
        if sample is End:
            raise self._too_short(position)
        self._next, self._last = position + 1, sample
        return sample

    def _begin(self, epoch: int) -> None:
        if (set_epoch := getattr(self.dataset, "set_epoch", None)) is not None:
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
            f"the iterable dataset ended before sample {position} of {self._samples}: pass "
            "atoll.DataLoader(samples=...) its actual number of samples, the same on all ranks"
        )


def as_positions(dataset: Any, samples: int | None) -> Any:
    """Returns the dataset, or a Stream if it is iterable. Raises ValueError or TypeError that names what is missing."""
    if isinstance(dataset, IterableDataset):
        if samples is None and not hasattr(dataset, "__len__"):
            raise ValueError(
                "the iterable dataset has no length: pass atoll.DataLoader(samples=...), the samples per epoch"
            )
        return Stream(dataset, len(dataset) if samples is None else samples)  # type: ignore[arg-type]
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"{type(dataset).__name__} is not a dataset: it needs __len__ and __getitem__, or IterableDataset"
        )
    if len(dataset) == 0:
        raise ValueError("the dataset is empty")
    return dataset
