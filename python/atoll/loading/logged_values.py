# SPDX-License-Identifier: Apache-2.0
"""Values of a training's loop, such as a loss or an accuracy: their means over a step, and over a window to show."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from atoll.loading.exchange import hash_of
from atoll.weighting.batch_part import Part

MAX_NAMES = 8
NOTED_NUMBERS = 1 + 2 * MAX_NAMES


class Notes:
    """Adds up this rank's values over its batches. Values on a device are read once per window."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[torch.Tensor | float, float]] = {}

    def add(self, weight: float, values: Mapping[str, torch.Tensor | float]) -> None:
        """Adds means over a batch that has `weight` in its step. Raises ValueError for more than MAX_NAMES names, and
        for anything that is not a single number."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise ValueError(f"loader.note: {name} has {value.numel()} elements: give a single number")
                value = value.detach().reshape(()).to(torch.float64 if value.device.type == "cpu" else torch.float32)
            if name not in self._sums and len(self._sums) == MAX_NAMES:
                raise ValueError(f"loader.note: {name} is one name too many: at most {MAX_NAMES} can be shown")
            total, weights = self._sums.get(name, (0.0, 0.0))
            if weight:
                total, weights = total + weight * value, weights + weight
            self._sums[name] = total, weights

    def names(self) -> list[str]:
        return sorted(self._sums)

    def take(self) -> list[float]:
        """Returns the sums since the last call as numbers for the exchange; always equally many."""
        names = self.names()
        numbers = [_hash(names)]
        for name in names:
            total, weight = self._sums[name]
            numbers += [float(total), weight]
        self._sums = {}
        return numbers + [0.0] * (NOTED_NUMBERS - len(numbers))


def together(names: Sequence[str], everyone: Sequence[Sequence[float]]) -> dict[str, float] | None:
    """Returns the means over all ranks' batches; None unless all ranks have noted the same `names`."""
    if {numbers[0] for numbers in everyone} != {_hash(names)}:
        return None
    means = {}
    for place, name in enumerate(names):
        total = sum(numbers[1 + 2 * place] for numbers in everyone)
        weight = sum(numbers[2 + 2 * place] for numbers in everyone)
        if weight > 0:
            means[name] = total / weight
    return means


def _hash(names: Sequence[str]) -> float:
    return float(hash_of("\0".join(names))) if names else 0.0


class StepMeans:
    """Adds up a rank's values over the batches of a step, and over all ranks at the last batch. Several values per
    batch are told apart by their order."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[torch.Tensor | float, int]] = {}  # by place; and the number of batches
        self._place, self._batches, self._is_last = 0, 0, True

    def begin(self, part: Part) -> None:
        """Starts a batch, to which the next values belong."""
        if part.is_first:
            self._sums, self._batches = {}, 0
        self._place, self._batches, self._is_last = 0, self._batches + 1, part.is_last

    def add(self, weighted: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Returns the sum over the step's batches and ranks at the last batch, NaN before. Collective at the last."""
        place, self._place = self._place, self._place + 1
        before, count = self._sums.get(place, (0.0, 0))
        total, count = self._sums[place] = before + weighted, count + 1
        if not self._is_last:
            return torch.full_like(total, float("nan"))
        if count < self._batches:
            raise RuntimeError(
                f"loader.mean was called for {count} of this step's {self._batches} batches: call it for each of them"
            )
        dist.all_reduce(total, group=group)
        return total
