# SPDX-License-Identifier: Apache-2.0
"""Datasets, also iterable ones, read by position, and the order in which a training takes their samples: one for all
ranks, the same on every platform."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from atoll import _C
from atoll.profiling.isolation import same_random_numbers
from atoll.profiling.python_state import PythonState

End = object()


class Order:
    """Maps positions of an epoch to samples. A position belongs to a step, whatever the plan, so the order does not
    depend on ranks. The order comes from exactly one of: shuffling, `weights` (drawing `samples` samples with
    replacement), and `sampler` (any iterable of indices, which must give the same indices on every rank, and each time
    for an epoch)."""

    def __init__(
        self, size: int, seed: int, *, shuffle: bool = True, sampler: Iterable[int] | None = None,
        weights: Sequence[float] | torch.Tensor | None = None, samples: int | None = None,
    ) -> None:  # fmt: skip
        if sampler is not None and weights is not None:
            raise ValueError("give a sampler or weights, not both")
        self._seed, self._shuffle, self._sampler = seed, shuffle, sampler
        self._weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        if self._weights is not None and self._weights.numel() != size:
            raise ValueError(
                f"{self._weights.numel()} weights for a dataset of {size} samples: give one for each sample"
            )
        self._size = size
        self._samples = size if samples is None else samples
        self.is_drawn = sampler is not None or weights is not None
        """Whether the number of samples in an epoch is that of a sampler or weights, not that of the dataset."""

    def of_epoch(self, epoch: int) -> torch.Tensor:
        """Returns the indices into the dataset by position, as int64."""
        if self._sampler is not None:
            if (set_epoch := getattr(self._sampler, "set_epoch", None)) is not None:
                set_epoch(epoch)
            indices = torch.tensor(list(self._sampler), dtype=torch.int64)
            if len(indices) == 0:
                raise ValueError("the sampler gives no samples: pass one that does, at every iteration, or remove it")
            outside = indices[(indices < 0) | (indices >= self._size)]
            if len(outside):
                raise ValueError(f"the sampler gave index {outside[0]}, but the dataset has {self._size} samples: give "
                                 f"0 to {self._size - 1}")  # fmt: skip
            return indices
        if self._weights is not None:
            return _C.draw(self._weights, self._samples, self._seed, epoch)
        if self._shuffle:
            return _C.permutation(self._size, self._seed, epoch)
        return torch.arange(self._size, dtype=torch.int64)


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
            if (set_epoch := getattr(self.dataset, "set_epoch", None)) is not None:
                set_epoch(epoch)
            self._reading, self._iterator, self._next = (epoch, os.getpid()), iter(self.dataset), 0
        self._pass_over(position - self._next)
        sample = next(self._iterator, End)
        if sample is End:
            raise self._too_short(position)
        self._next, self._last = position + 1, sample
        return sample

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


@dataclass(frozen=True)
class Source:
    """One rank's access to samples by position."""

    dataset: Any  # map-style, or a Stream
    order: Order
    samples: int  # per epoch; with a sampler, in the first epoch

    @property
    def is_stream(self) -> bool:
        return isinstance(self.dataset, Stream)

    @property
    def given(self) -> Any:
        """The user's dataset."""
        return self.dataset.dataset if isinstance(self.dataset, Stream) else self.dataset

    def keys(self, places: list[int]) -> list[Any]:
        """Returns the keys of places in the first epoch."""
        return [(0, place) for place in places] if self.is_stream else list(places)

    def apart(self) -> Any:
        """Returns the dataset for readers other than the training."""
        return self.dataset.reopened() if isinstance(self.dataset, Stream) else self.dataset


def source_of(
    dataset: Any, seed: int, *, shuffle: bool, sampler: Iterable[int] | None,
    weights: Sequence[float] | torch.Tensor | None, samples: int | None,
) -> Source:  # fmt: skip
    """Returns the source. Raises ValueError or TypeError for a dataset that cannot be read by position or is empty."""
    by_position = as_positions(dataset, samples)
    shuffle = shuffle and not isinstance(by_position, Stream)
    order = Order(len(by_position), seed, shuffle=shuffle, sampler=sampler, weights=weights, samples=samples)
    state = PythonState([sampler])
    try:
        with same_random_numbers():
            count = len(order.of_epoch(0)) if order.is_drawn else len(by_position)
    finally:
        state.restore()  # so that the first epoch draws the same numbers again
    return Source(by_position, order, count)
