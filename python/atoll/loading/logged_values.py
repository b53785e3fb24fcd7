# SPDX-License-Identifier: Apache-2.0
"""Values that the loop shows with its training, such as a loss or an accuracy."""

import hashlib
from collections.abc import Mapping, Sequence

import torch

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
    """Returns 48 bits, which fit in a float; 0 for no names."""
    text = "\0".join(names)
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")) if names else 0.0
