# SPDX-License-Identifier: Apache-2.0
"""Values that the loop wants shown with its training: a loss, an accuracy."""

import hashlib
from collections.abc import Mapping, Sequence

import torch

MOST_NAMES = 8
NOTED_NUMBERS = 1 + 2 * MOST_NAMES


class Notes:
    """Adds up what this rank says of its batches. What lies on a device is read once in a window."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[torch.Tensor | float, float]] = {}

    def add(self, weight: float, values: Mapping[str, torch.Tensor | float]) -> None:
        """`values` are means over a batch that counts `weight` of its step. ValueError for more than MOST_NAMES, and
        for what is no single number."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise ValueError(f"loader.note: {name} has {value.numel()} elements: give a single number")
                value = value.detach().reshape(()).to(torch.float64 if value.device.type == "cpu" else torch.float32)
            if name not in self._sums and len(self._sums) == MOST_NAMES:
                raise ValueError(f"loader.note: {name} is one name too many: {MOST_NAMES} are shown")
            total, weights = self._sums.get(name, (0.0, 0.0))
            if weight:
                total, weights = total + weight * value, weights + weight
            self._sums[name] = total, weights

    def names(self) -> list[str]:
        return sorted(self._sums)

    def take(self) -> list[float]:
        """Since the last call, as numbers that ranks exchange; equally many whatever was noted."""
        names = self.names()
        numbers = [_hash(names)]
        for name in names:
            total, weight = self._sums[name]
            numbers += [float(total), weight]
        self._sums = {}
        return numbers + [0.0] * (NOTED_NUMBERS - len(numbers))


def together(names: Sequence[str], everyone: Sequence[Sequence[float]]) -> dict[str, float] | None:
    """The means over all ranks' batches, where all have noted the same `names`; None: they have not."""
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
    """48 bits, which a float holds; 0 for none."""
    text = "\0".join(names)
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")) if names else 0.0
