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
    """Samples by position, on one rank."""

    dataset: Any  # map-style, or a Stream
    order: Order
    samples: int  # in an epoch; of a sampler, in the first one

    @property
    def is_stream(self) -> bool:
        return isinstance(self.dataset, Stream)

    @property
    def given(self) -> Any:
        """The user's dataset."""
        return self.dataset.dataset if isinstance(self.dataset, Stream) else self.dataset

    def keys(self, places: list[int]) -> list[Any]:
        """Of the first epoch."""
        return [(0, place) for place in places] if self.is_stream else list(places)

    def apart(self) -> Any:
        """The dataset, for others than the training to read."""
        return self.dataset.anew() if isinstance(self.dataset, Stream) else self.dataset


def source_of(
    dataset: Any, seed: int, *, shuffle: bool, sampler: Iterable[int] | None,
    weights: Sequence[float] | torch.Tensor | None, samples: int | None,
) -> Source:  # fmt: skip
    """Raises ValueError or TypeError for what cannot be read by position, and for no samples."""
    by_position = as_positions(dataset, samples)
    shuffle = shuffle and not isinstance(by_position, Stream)
    order = Order(len(by_position), seed, shuffle=shuffle, sampler=sampler, weights=weights, samples=samples)
    state = PythonState([sampler])
    try:
        with same_random_numbers():
            count = len(order.of_epoch(0)) if order.is_drawn else len(by_position)
    finally:
        state.restore()  # the first epoch draws the same again
    return Source(by_position, order, count)
