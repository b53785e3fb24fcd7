# SPDX-License-Identifier: Apache-2.0
"""Classifiers for small devices: wide in between, one convolution per channel, channels scaled by their means."""

from collections.abc import Sequence

from torch import nn

from networks.parts import Activation, Residual, SqueezeExcite, conv, head

# MobileNetV3-Large (Howard et al., 2019, table 1): kernel, channels in between, channels, scaled or not, activation,
# stride.
MOBILENET_V3_LARGE = (
    (3, 16, 16, False, nn.ReLU, 1),
    (3, 64, 24, False, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2),
    (5, 120, 40, True, nn.ReLU, 1),
    (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2),
    (3, 200, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 480, 112, True, nn.Hardswish, 1),
    (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2),
    (5, 960, 160, True, nn.Hardswish, 1),
    (5, 960, 160, True, nn.Hardswish, 1),
)

# EfficientNet-B0 (Tan and Le, 2019, table 1): expansion, kernel, stride, channels, repeats.
EFFICIENTNET_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def _inverted(
    inside: int, middle: int, outside: int, kernel: int, stride: int, act: Activation, squeeze: nn.Module | None
) -> nn.Module:
    layers = [conv(inside, middle, 1, act=act)] if middle != inside else []
    layers.append(conv(middle, middle, kernel, stride, middle, act))
    layers += [squeeze] if squeeze is not None else []
    body = nn.Sequential(*layers, conv(middle, outside, 1, act=None))
    return Residual(body) if stride == 1 and inside == outside else body


def _by_eight(channels: float) -> int:
    """Returns the nearest multiple of eight, but not less than nine tenths of the number."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found if found >= 0.9 * channels else found + 8


def mobilenet(rows: Sequence[tuple], stem: int = 16, last: int = 1280, classes: int = 1000) -> nn.Module:
    layers = [conv(3, stem, 3, 2, act=nn.Hardswish)]
    inside = stem
    for kernel, middle, outside, is_scaled, act, stride in rows:
        squeeze = SqueezeExcite(middle, _by_eight(middle / 4), nn.ReLU, nn.Hardsigmoid) if is_scaled else None
        layers.append(_inverted(inside, middle, outside, kernel, stride, act, squeeze))
        inside = outside
    layers.append(conv(inside, 6 * inside, 1, act=nn.Hardswish))
    return nn.Sequential(*layers, *head(6 * inside, last), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(last, classes))


def efficientnet(rows: Sequence[tuple], stem: int = 32, classes: int = 1000) -> nn.Module:
    layers = [conv(3, stem, 3, 2, act=nn.SiLU)]
    inside = stem
    for expansion, kernel, stride, outside, count in rows:
        for place in range(count):
            middle = expansion * inside
            squeeze = SqueezeExcite(middle, max(1, inside // 4), nn.SiLU, nn.Sigmoid)
            step = stride if place == 0 else 1
            layers.append(_inverted(inside, middle, outside, kernel, step, nn.SiLU, squeeze))
            inside = outside
    layers.append(conv(inside, 4 * inside, 1, act=nn.SiLU))
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * inside, classes)]
    return nn.Sequential(*layers, *pooled)
