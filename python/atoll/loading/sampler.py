# SPDX-License-Identifier: Apache-2.0
"""KAITIAN's sampler for a stock DataLoader: batches in proportion to scores."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler

from atoll import _C
from atoll.loading.source import Order
from atoll.loading.windows import cut, next_window


class BatchSampler(Sampler[list[int]]):
    """The `batch_sampler` of a stock torch.utils.data.DataLoader that gives each rank samples in proportion to its
    score (KAITIAN, section III-D): `scores[r]` is rank r's relative speed. It only divides samples: gradients of
    unequal batches are averaged with equal weights. `atoll.DataLoader` weights them, and measures the speeds.

    Every sample occurs exactly once in an epoch; the last batch is split by the same scores. `rank` defaults to this
    process's rank in the default group. Raises ValueError for invalid scores, and for batches smaller than the number
    of ranks."""

    def __init__(
        self, dataset: Any, global_batch: int, scores: Sequence[float], *, seed: int = 0, shuffle: bool = True,
        drop_last: bool = False, rank: int | None = None,
    ) -> None:  # fmt: skip
        if rank is None and len(scores) != dist.get_world_size():
            raise ValueError(f"{len(scores)} scores for {dist.get_world_size()} ranks: give one for each")
        self._rank = dist.get_rank() if rank is None else rank
        if not 0 <= self._rank < len(scores):
            raise ValueError(f"rank={self._rank}, but {len(scores)} scores are for ranks 0 to {len(scores) - 1}")
        self._scores, self._global_batch, self._drop_last = list(scores), global_batch, drop_last
        self._order = Order(len(dataset), seed, shuffle=shuffle)
        self._samples, self.epoch = len(dataset), 0
        if global_batch < len(scores):
            raise ValueError(
                f"a global batch of {global_batch} samples leaves some of {len(scores)} ranks without samples"
            )
        left = 0 if drop_last else len(dataset) % global_batch
        if 0 < left < len(scores):
            raise ValueError(
                f"the last batch of an epoch has {left} of {len(dataset)} samples for {len(scores)} ranks: "
                "pass drop_last=True, or another global_batch"
            )

    def batch_sizes(self) -> list[int]:
        """Returns the samples of a whole step, by rank."""
        return self._split(self._global_batch)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self._samples, self._global_batch)
        return whole + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order.of_epoch(self.epoch)
        position = 0
        while window := next_window(len(order), position, self._global_batch, self._drop_last):
            position = window.last
            (mine,) = cut(window, self._split(window.samples), self._rank)
            yield order[mine.first : mine.last].tolist()

    def _split(self, samples: int) -> list[int]:
        return _C.apportion(self._scores, samples, [(1, None, 1)] * len(self._scores))
