# SPDX-License-Identifier: Apache-2.0
"""A dataset and the order in which a training takes its samples: one for all ranks, the same on every platform."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atoll import _C
from atoll.loading.stream import Stream, as_positions
from atoll.profiling.isolation import same_random_numbers
from atoll.profiling.python_state import PythonState


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
            return self._checked(torch.tensor(list(self._sampler), dtype=torch.int64))
        if self._weights is not None:
            return _C.draw(self._weights, self._samples, self._seed, epoch)
        if self._shuffle:
            return _C.permutation(self._size, self._seed, epoch)
        return torch.arange(self._size, dtype=torch.int64)

    def _checked(self, indices: torch.Tensor) -> torch.Tensor:
        if len(indices) == 0:
            raise ValueError("the sampler gives no samples: pass one that does, at every iteration, or remove it")
        outside = indices[(indices < 0) | (indices >= self._size)]
        if len(outside):
            raise ValueError(f"the sampler gave index {outside[0]}, but the dataset has {self._size} samples: give 0 "
                             f"to {self._size - 1}")  # fmt: skip
        return indices


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
