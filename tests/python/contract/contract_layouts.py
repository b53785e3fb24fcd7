# SPDX-License-Identifier: Apache-2.0
"""Memory layouts of tensors: contiguous, shifted, transposed, with gaps."""

from collections.abc import Callable, Iterator

import torch

SHAPES = [(), (0,), (1,), (7,), (3, 5), (0, 4), (2, 3, 4, 4), (1031,)]


def in_one_piece(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    base = values.clone().to(device)
    return base, base


def shifted(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts in the middle of a storage, without alignment."""
    base = torch.zeros(values.numel() + 2, dtype=values.dtype, device=device)
    return base, base[1 : values.numel() + 1].view(values.shape)


def transposed(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.zeros(values.shape[::-1], dtype=values.dtype, device=device)
    return base, base.permute(*reversed(range(values.dim())))


def with_gaps(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Uses every other element of a storage."""
    base = torch.zeros(values.numel() * 2 + 1, dtype=values.dtype, device=device)
    strides, step = [], 2
    for length in reversed(values.shape):
        strides.append(step)
        step *= max(1, length)
    return base, base.as_strided(values.shape, strides[::-1])


LAYOUTS: dict[str, Callable[[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]]] = {
    "in one piece": in_one_piece,
    "shifted": shifted,
    "transposed": transposed,
    "with gaps": with_gaps,
}


class Placed:
    """A tensor of some layout that holds `values`, and the storage that it is part of."""

    def __init__(self, layout: str, values: torch.Tensor, device: str) -> None:
        self._base, self.tensor = LAYOUTS[layout](values, device)
        self.tensor.copy_(values)

    def is_alone(self) -> bool:
        """Returns whether nothing was written outside the tensor, where the storage holds zeros."""
        return bool(self._base.cpu().double().abs().sum() == self.tensor.cpu().double().abs().sum())


def layouts() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Returns every layout with each shape that it can have."""
    for layout in LAYOUTS:
        for shape in SHAPES:
            size = torch.Size(shape).numel()
            if layout == "in one piece" or (shape and size > 1 and (layout != "transposed" or len(shape) > 1)):
                yield layout, shape
