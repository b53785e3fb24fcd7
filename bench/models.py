# SPDX-License-Identifier: Apache-2.0
"""The networks that are trained: those of the papers, narrower where a processor simulates the devices, and small
ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CLASSES, BYTES = 10, 256

# MobileNetV2's table: expansion, channels, repeats, stride (Sandler et al., 2018), with the strides for 32 x 32 images.
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution and batch normalisation."""
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


class Residual(nn.Module):
    """Adds its input to the output of `body`."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x) + self.shortcut(x)
        return found


class Mean(nn.Module):
    """Averages over the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def _inverted(before: int, after: int, expansion: int, stride: int) -> nn.Module:
    middle = before * expansion
    layers = [*_conv(before, middle, 1), nn.ReLU6()] if expansion != 1 else []
    layers += [*_conv(middle, middle, 3, stride, middle), nn.ReLU6(), *_conv(middle, after, 1)]
    body = nn.Sequential(*layers)
    return Residual(body) if stride == 1 and before == after else body


def mobilenet(width: float = 1.0, stem_stride: int = 2) -> nn.Module:
    """MobileNetV2 for 3 x 32 x 32."""

    def wide(channels: int) -> int:
        return max(4, int(channels * width + 2) // 4 * 4)

    layers: list[nn.Module] = [*_conv(3, wide(32), 3, stem_stride), nn.ReLU6()]
    before = wide(32)
    for expansion, channels, repeats, stride in BLOCKS:
        for repeat in range(repeats):
            layers.append(_inverted(before, wide(channels), expansion, stride if repeat == 0 else 1))
            before = wide(channels)
    last = wide(1280) if width > 1 else max(64, int(1280 * width))
    return nn.Sequential(*layers, *_conv(before, last, 1), nn.ReLU6(), Mean(), nn.Linear(last, CLASSES))


def small_cnn(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * width * 64, 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def batch_normed(width: int = 8) -> nn.Module:
    """A small network with three layers of batch normalisation."""
    return nn.Sequential(
        *_conv(3, width, 3, 2), nn.ReLU(), *_conv(width, 2 * width, 3, 2), nn.ReLU(),
        *_conv(2 * width, 4 * width, 3, 2), nn.ReLU(), Mean(), nn.Linear(4 * width, CLASSES),
    )  # fmt: skip


def alexnet(width: int = 8) -> nn.Module:
    """Five convolutions, three pools, three full layers (Krizhevsky et al., 2012), for 32 x 32 and without dropout."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 3 * width, 5, 1, 2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(3 * width, 6 * width, 3, 1, 1), nn.ReLU(), nn.Conv2d(6 * width, 4 * width, 3, 1, 1),
        nn.ReLU(), nn.Conv2d(4 * width, 4 * width, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * width, 64 * width), nn.ReLU(), nn.Linear(64 * width, 64 * width), nn.ReLU(),
        nn.Linear(64 * width, CLASSES),
    )  # fmt: skip


def vgg(width: int = 4) -> nn.Module:
    """VGG16's thirteen convolutions in five groups (Simonyan and Zisserman, 2014), from half the resolution on."""
    layers: list[nn.Module] = [nn.AvgPool2d(2)]
    before = 3
    for group, repeats in enumerate((2, 2, 3, 3, 3)):
        after = width << min(group, 3)
        for _ in range(repeats):
            layers += [*_conv(before, after), nn.ReLU()]
            before = after
        if group < 4:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def resnet(width: int = 4) -> nn.Module:
    """ResNet50's bottlenecks (He et al., 2015): 3, 4, 6 and 3 of them."""
    layers: list[nn.Module] = [*_conv(3, width, 3, 2), nn.ReLU()]
    before = width
    for stage, repeats in enumerate((3, 4, 6, 3)):
        middle = width << stage
        for repeat in range(repeats):
            stride = 2 if stage and repeat == 0 else 1
            body = nn.Sequential(
                *_conv(before, middle, 1), nn.ReLU(), *_conv(middle, middle, 3, stride), nn.ReLU(),
                *_conv(middle, 4 * middle, 1),
            )  # fmt: skip
            shortcut = None if repeat else nn.Sequential(*_conv(before, 4 * middle, 1, stride))
            layers += [Residual(body, shortcut), nn.ReLU()]
            before = 4 * middle
    return nn.Sequential(*layers, Mean(), nn.Linear(before, CLASSES))


class Attention(nn.Module):
    """Causal attention with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.of_input(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / query.size(-1) ** 0.5
        later = torch.ones(x.size(1), x.size(1)).triu(1).bool().to(x.device)
        found: torch.Tensor = self.out(scores.masked_fill(later, -1e9).softmax(-1) @ value)
        return found


class ByteModel(nn.Module):
    """A transformer that predicts the next byte; returns (samples, bytes, 256)."""

    def __init__(self, width: int = 32, layers: int = 2, length: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts.append(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width))))
            wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            parts.append(Residual(nn.Sequential(nn.LayerNorm(width), *wide)))
        self.body = nn.Sequential(*parts, nn.LayerNorm(width), nn.Linear(width, BYTES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(self.embedding(x) + self.place[: x.size(1)])
        return found


def wide_layers(parameters: int = 1 << 16, passes: int = 1) -> nn.Module:
    """One square layer of about `parameters` parameters that is used `passes` times, so that gradient bytes and work
    can be chosen separately."""
    side = max(1, round(parameters**0.5))
    layer = nn.Linear(side, side, bias=False)
    inner = [part for _ in range(passes) for part in (layer, nn.ReLU())]
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, side), *inner, nn.Linear(side, CLASSES))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mobilenet": mobilenet, "cnn": small_cnn, "alexnet": alexnet, "resnet": resnet, "vgg": vgg, "bytes": ByteModel,
    "batch_normed": batch_normed, "wide": wide_layers,
}  # fmt: skip


def make(name: str, seed: int, **options: Any) -> nn.Module:
    """The same parameters on every rank."""
    torch.manual_seed(seed)
    return MODELS[name](**options)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean over the samples, for classes and for next bytes, of which all samples have the same number."""
    inputs, targets = batch
    found = model(inputs)
    return nn.functional.cross_entropy(found.reshape(-1, found.size(-1)), targets.reshape(-1))
