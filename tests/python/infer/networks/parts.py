# SPDX-License-Identifier: Apache-2.0
"""Layers that several networks share."""

from collections.abc import Callable

import torch
from torch import nn

Activation = Callable[..., nn.Module]


def conv(
    inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Activation | None = nn.ReLU
) -> nn.Sequential:
    """A convolution, a batch norm, an activation."""
    plain = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(plain, nn.BatchNorm2d(outside), *([act(inplace=True)] if act else []))


class Residual(nn.Module):
    """Adds the output of `body` to the input, or to the output of `side`."""

    def __init__(self, body: nn.Module, side: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.side, self.act = body, side or nn.Identity(), act or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x) + self.side(x))


class SqueezeExcite(nn.Module):
    """Scales channels by a function of their means (Hu et al., 2017)."""

    def __init__(self, channels: int, squeezed: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        down, up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), down, act(), up, gate())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


def head(inside: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]


def keep_variance(module: nn.Module) -> nn.Module:
    """Initialises weights for networks without norms by He et al. (2015): with PyTorch's own, hardly anything of the
    input would be left after twenty layers, and comparisons would not show errors in the first ones."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return module
