# SPDX-License-Identifier: Apache-2.0
"""A dataset and the order in which a training takes its samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atoll.loading.order import Order
from atoll.loading.stream import Stream, as_positions
from atoll.profiling.isolation import same_random_numbers
from atoll.profiling.python_state import PythonState


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
