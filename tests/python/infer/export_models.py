# SPDX-License-Identifier: Apache-2.0
"""Small networks of the kinds that are split, with random weights and an example for each: the published ones at
reduced size, and some for operators that those lack."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import networks
from networks import NETWORKS, Example

TRANSFORMERS = ("bert", "llama")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 5, num_layers=2, batch_first=True, dropout=0.5)
        self.second = nn.GRU(5, 4, bidirectional=True)

    def forward(self, x: torch.Tensor) -> Any:
        x, state = self.first(x)
        return self.second(x)[0], state


def recurrent() -> Example:
    return Recurrent(), (torch.randn(2, 7, 6),), {}


def encoder() -> Example:
    """Eager mode computes this one with fused kernels."""
    return nn.TransformerEncoderLayer(12, 3, 24, batch_first=True), (torch.randn(2, 5, 12),), {}


class Resizing(nn.Module):
    """Windows and factors that do not divide the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.wide = nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = functional.max_pool2d(self.first(x), 2, ceil_mode=True)
        x = functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        smooth = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = torch.cat([smooth, self.wide(x)], 1)
        nearest = functional.interpolate(x, size=(21, 24), mode="nearest")
        means = functional.adaptive_avg_pool2d(functional.dropout(x, 0.5, self.training), (7, 4))
        return nearest, means, x.reshape(x.shape[0], x.shape[1], -1).mean(-1).softmax(-1)


def resizing() -> Example:
    return Resizing(), (torch.randn(2, 3, 25, 31),), {}


class Volume(nn.Module):
    """Takes voxels as bytes; returns a score for each voxel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv3d(4, 4, 3, 1, 2, dilation=2), nn.ReLU())
        self.up = nn.ConvTranspose3d(4, 2, 3, 2, 1, output_padding=1)

    def forward(self, voxels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.down(voxels.to(torch.float32) / 255)
        x = functional.interpolate(self.up(x), scale_factor=(1, 2, 2), mode="trilinear", align_corners=True)
        return torch.sigmoid(x), x.amax(dim=(2, 3, 4)) > 0


def volume() -> Example:
    return Volume(), (torch.randint(0, 256, (1, 1, 8, 12, 10), dtype=torch.uint8),), {}


EXAMPLES: dict[str, Callable[[], Example]] = {name: partial(networks.example, name) for name in NETWORKS} | {
    made.__name__: made for made in (recurrent, encoder, resizing, volume)
}

# The dimensions of the first input along which they are divided (rows and columns, voxels, tokens or the batch), and
# the dimension of the first output along which one value is the largest.
DIMS = {name: network.dims for name, network in NETWORKS.items()} | {
    "recurrent": (0, 1), "encoder": (1, 0), "resizing": (2, 3), "volume": (2, 4),
}  # fmt: skip
CLASSES = {name: network.classes for name, network in NETWORKS.items()} | {
    "recurrent": -1, "encoder": -1, "resizing": 1, "volume": 1,
}  # fmt: skip


def example(name: str) -> Example:
    """Returns the model in eval mode, with the same weights every time, and its inputs."""
    torch.manual_seed(1)
    module, args, kwargs = EXAMPLES[name]()
    return module.eval(), args, kwargs
