# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch's samples: one for all ranks, the same on every platform."""

from collections.abc import Iterable, Sequence

import torch

from atoll import _C


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
            set_epoch = getattr(self._sampler, "set_epoch", None)
            if set_epoch is not None:
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
