# SPDX-License-Identifier: Apache-2.0
"""Image classifiers made of convolutions."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from networks.parts import Residual, conv, head, keep_variance


def _bottleneck(inside: int, middle: int, outside: int, stride: int, groups: int = 1) -> nn.Module:
    body = nn.Sequential(
        conv(inside, middle, 1), conv(middle, middle, 3, stride, groups), conv(middle, outside, 1, act=None)
    )
    side = conv(inside, outside, 1, stride, act=None) if stride > 1 or inside != outside else None
    return Residual(body, side, nn.ReLU(inplace=True))


def resnet(blocks: Sequence[int], width: int = 64, classes: int = 1000) -> nn.Module:
    """He et al., 2015."""
    layers = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for stage, count in enumerate(blocks):
        middle = width << stage
        for place in range(count):
            layers.append(_bottleneck(inside, middle, 4 * middle, 2 if stage and place == 0 else 1))
            inside = 4 * middle
    return nn.Sequential(*layers, *head(inside, classes))


def regnet(depths: Sequence[int], widths: Sequence[int], group: int, stem: int = 32, classes: int = 1000) -> nn.Module:
    """RegNetX (Radosavovic et al., 2020): convolutions in groups of `group` channels."""
    layers = [conv(3, stem, 3, 2)]
    inside = stem
    for count, width in zip(depths, widths, strict=True):
        for place in range(count):
            layers.append(_bottleneck(inside, width, width, 2 if place == 0 else 1, width // group))
            inside = width
    return nn.Sequential(*layers, *head(inside, classes))


def vgg(
    repeats: Sequence[int] = (2, 2, 4, 4, 4),
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    normed: bool = False,
) -> nn.Module:
    """VGG19 (Simonyan and Zisserman, 2014), also with batch norms."""
    layers: list[nn.Module] = []
    inside = 3
    for stage, count in enumerate(repeats):
        outside = width << min(stage, 3)
        for _ in range(count):
            norm = [nn.BatchNorm2d(outside)] if normed else []
            layers += [nn.Conv2d(inside, outside, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            inside = outside
        layers.append(nn.MaxPool2d(2))
    full = [nn.Linear(49 * inside, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    full += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, classes)]
    return keep_variance(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *full))


def _normed(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


class _Dense(nn.Module):
    """Appends channels to its input."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        narrow = nn.Conv2d(inside, 4 * growth, 1, bias=False)
        wide = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.body = nn.Sequential(*_normed(inside), narrow, *_normed(4 * growth), wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(blocks: Sequence[int], growth: int = 32, classes: int = 1000) -> nn.Module:
    """Huang et al., 2016."""
    inside = 2 * growth
    layers: list[nn.Module] = [conv(3, inside, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for place, count in enumerate(blocks):
        if place > 0:
            layers += [*_normed(inside), nn.Conv2d(inside, inside // 2, 1, bias=False), nn.AvgPool2d(2)]
            inside //= 2
        for _ in range(count):
            layers.append(_Dense(inside, growth))
            inside += growth
    return nn.Sequential(*layers, *_normed(inside), *head(inside, classes))


class _ChannelNorm(nn.LayerNorm):
    """Normalises over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Next(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.body = nn.Sequential(nn.LayerNorm(width, 1e-6), wide, nn.GELU(), narrow)
        self.scale = nn.Parameter(torch.full((width,), 0.5))  # training starts from 1e-6, which would hide the block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.body(self.mix(x).permute(0, 2, 3, 1)) * self.scale
        return x + made.permute(0, 3, 1, 2)


def convnext(depths: Sequence[int], widths: Sequence[int], classes: int = 1000) -> nn.Module:
    """Liu et al., 2022."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), _ChannelNorm(widths[0], 1e-6)]
    layers += [_Next(widths[0]) for _ in range(depths[0])]
    for (inside, outside), count in zip(pairwise(widths), depths[1:], strict=True):
        layers += [_ChannelNorm(inside, 1e-6), nn.Conv2d(inside, outside, 2, 2)]
        layers += [_Next(outside) for _ in range(count)]
    last = widths[-1]
    pooled = [nn.AdaptiveAvgPool2d(1), _ChannelNorm(last, 1e-6), nn.Flatten(), nn.Linear(last, classes)]
    return nn.Sequential(*layers, *pooled)
