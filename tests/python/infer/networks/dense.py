# SPDX-License-Identifier: Apache-2.0
"""Networks with an output for every place: masks, boxes, voxels."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from networks.parts import Residual, conv, keep_variance


def _double(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(conv(inside, outside), conv(outside, outside))


def _as_large_as(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    rows, columns = other.shape[2] - x.shape[2], other.shape[3] - x.shape[3]
    if rows == 0 and columns == 0:
        return x
    return functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])


class UNet(nn.Module):
    """Ronneberger et al., 2015, with padded convolutions and batch norms: masks as large as the image."""

    def __init__(self, widths: Sequence[int] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:
        super().__init__()
        pairs = list(pairwise(widths))[::-1]
        self.down = nn.ModuleList(_double(inside, outside) for inside, outside in pairwise((3, *widths)))
        self.wide = nn.ModuleList(nn.ConvTranspose2d(below, here, 2, 2) for here, below in pairs)
        self.up = nn.ModuleList(_double(2 * here, here) for here, _ in pairs)
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        skips = [self.down[0](image)]
        for layer in self.down[1:]:
            skips.append(layer(functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for wide, layer in zip(self.wide, self.up, strict=True):
            skip = skips.pop()
            x = layer(torch.cat([skip, _as_large_as(wide(x), skip)], 1))
        scores = self.last(x)
        return {"mask": scores, "labels": scores.argmax(1)}


_conv = partial(conv, act=nn.SiLU)


class _CrossStage(nn.Module):
    """Sends half of the channels through bottlenecks and half around them (Wang et al., 2019)."""

    def __init__(self, inside: int, outside: int, count: int, adds: bool) -> None:
        super().__init__()
        half = outside // 2
        bottlenecks = [nn.Sequential(_conv(half, half, 1), _conv(half, half)) for _ in range(count)]
        layers = [Residual(each) if adds else each for each in bottlenecks]
        self.through = nn.Sequential(_conv(inside, half, 1), *layers)
        self.around, self.join = _conv(inside, half, 1), _conv(outside, outside, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat([self.through(x), self.around(x)], 1))


class _Pyramid(nn.Module):
    """Takes maxima over windows of several sizes (He et al., 2014)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = _conv(width, width // 2, 1), _conv(2 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.cat([x, *(functional.max_pool2d(x, size, 1, size // 2) for size in (3, 5, 7))], 1))


# Anchors in pixels, for objects of the size that each scale detects.
ANCHORS = (
    ((19, 27), (44, 40), (38, 94)),
    ((96, 68), (86, 152), (180, 137)),
    ((140, 301), (303, 264), (238, 542)),
    ((436, 615), (739, 380), (925, 792)),
)


class Detector(nn.Module):
    """KAPAO-L (McNally et al., 2021), which is YOLOv5 with key points beside boxes: centre and size, certainty,
    classes and key points in pixels, for each place and anchor. `widths` are those of the stem and of each halving
    after it; objects are detected from the third one on. The image comes as bytes, its sides are multiples of the
    last stride."""

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512, 768, 1024),
        depths: Sequence[int] = (3, 9, 9, 3, 3),
        depth: int = 3,
        classes: int = 18,
        points: int = 17,
    ) -> None:
        super().__init__()
        scales = widths[2:]
        self.points, self.values = points, 5 + classes + 2 * points
        self.register_buffer("anchors", torch.tensor(ANCHORS[: len(scales)]).float(), persistent=False)
        self.stem = _conv(12, widths[0])
        stages = [
            nn.Sequential(_conv(inside, outside, 3, 2), _CrossStage(outside, outside, count, True))
            for (inside, outside), count in zip(pairwise(widths[:-1]), depths[:-1], strict=True)
        ]
        last = [_Pyramid(widths[-1]), _CrossStage(widths[-1], widths[-1], depths[-1], False)]
        self.stages = nn.ModuleList([*stages, nn.Sequential(_conv(widths[-2], widths[-1], 3, 2), *last)])
        pairs = list(pairwise(scales))
        self.lateral = nn.ModuleList(_conv(below, here, 1) for here, below in pairs[::-1])
        self.merge = nn.ModuleList(_CrossStage(2 * here, here, depth, False) for here, _ in pairs[::-1])
        self.down = nn.ModuleList(_conv(here, here, 3, 2) for here, _ in pairs)
        self.join = nn.ModuleList(_CrossStage(2 * here, below, depth, False) for here, below in pairs)
        self.heads = nn.ModuleList(nn.Conv2d(width, len(ANCHORS[0]) * self.values, 1) for width in scales)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = image.to(self.heads[0].weight.dtype) / 255
        x = self.stem(torch.cat([x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)], 1))
        kept = []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        found = [self._decoded(x, scale) for scale, x in enumerate(self._joined(kept[1:]))]
        return torch.cat(found, 1)

    def _joined(self, kept: list[torch.Tensor]) -> list[torch.Tensor]:
        """Combines the features of all scales, from the coarsest to the finest and back."""
        x = kept.pop()
        sides = []
        for lateral, merge in zip(self.lateral, self.merge, strict=True):
            sides.append(lateral(x))
            fine = functional.interpolate(sides[-1], scale_factor=2, mode="nearest")
            x = merge(torch.cat([fine, kept.pop()], 1))
        scales = [x]
        for down, join in zip(self.down, self.join, strict=True):
            scales.append(join(torch.cat([down(scales[-1]), sides.pop()], 1)))
        return scales

    def _decoded(self, x: torch.Tensor, scale: int) -> torch.Tensor:
        batch, _, rows, columns = x.shape
        stride = float(8 << scale)
        x = self.heads[scale](x).reshape(batch, len(ANCHORS[0]), self.values, rows, columns)
        x = x.permute(0, 1, 3, 4, 2).sigmoid()
        across, along = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy")
        place = torch.stack([across, along], -1).to(x.dtype)
        anchor = self.anchors[scale][:, None, None]
        centre = (x[..., :2] * 2 - 0.5 + place) * stride
        size = (x[..., 2:4] * 2) ** 2 * anchor
        points = x[..., -2 * self.points :] * 4 - 2
        points = points * anchor.repeat(1, 1, 1, self.points) + (place * stride).repeat(1, 1, self.points)
        certain = x[..., 4 : -2 * self.points]
        return torch.cat([centre, size, certain, points], -1).reshape(batch, -1, self.values)


def _pair(inside: int, outside: int) -> nn.Module:
    first, second = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def _wider(channels: int, halvings: int) -> nn.Module:
    if halvings == 1:
        return nn.ConvTranspose2d(channels, channels, 6, 2, 2)
    return nn.ConvTranspose2d(channels, channels, 1 << halvings, 1 << halvings)


def _dilated(planes: int, dilation: int) -> nn.Module:
    shape = {"kernel_size": 3, "padding": dilation, "dilation": dilation, "bias": False}
    first, second = nn.Conv3d(planes, planes, **shape), nn.Conv3d(planes, planes, **shape)
    return nn.Sequential(first, nn.BatchNorm3d(planes), nn.ReLU(), second, nn.BatchNorm3d(planes))


class Occupancy(nn.Module):
    """The network of AGRNav's published profiles, which is LMSCNet (Roldao et al., 2020). It takes the occupied
    voxels as bytes, and returns the scores of all classes for each voxel, and the best class. It has two-dimensional
    convolutions in the plane, with the height as channels, then three-dimensional ones. Sides in the plane are
    multiples of 8."""

    def __init__(self, height: int = 32, planes: int = 8, classes: int = 20) -> None:
        super().__init__()
        widths = [height, height * 3 // 2, 2 * height, height * 5 // 2]
        given = [0, height // 2, height // 4, height // 8]  # channels, by scale
        self.encoder = nn.ModuleList(_pair(inside, outside) for inside, outside in pairwise((height, *widths)))
        self.give = nn.ModuleList(nn.Conv2d(widths[scale], given[scale], 3, padding=1) for scale in (1, 2, 3))
        self.raised = nn.ModuleList(
            nn.ModuleList(_wider(given[other], other - scale) for other in range(scale + 1, 4)) for scale in range(3)
        )
        self.merge = nn.ModuleList(
            nn.Conv2d(widths[scale] + sum(given[scale + 1 :]), widths[scale], 3, padding=1) for scale in range(3)
        )
        self.first = nn.Conv3d(1, planes, 3, padding=1)
        self.branches = nn.ModuleList(_dilated(planes, dilation) for dilation in (1, 2, 3))
        self.last = nn.Conv3d(planes, classes, 3, padding=1)
        keep_variance(self)

    def forward(self, voxels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._plane(voxels.squeeze(1).permute(0, 2, 1, 3).to(self.first.weight.dtype))
        x = functional.relu(self.first(x[:, None]))
        made = x
        for branch in self.branches:
            made = made + branch(x)
        scores = self.last(functional.relu(made)).permute(0, 1, 3, 2, 4)
        return scores, scores.argmax(1).to(torch.uint8)

    def _plane(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for scale, layer in enumerate(self.encoder):
            x = layer(functional.max_pool2d(x, 2) if scale else x)
            skips.append(x)
        given = [self.give[2](x)]  # of the scales from here on, the finest first
        for scale in (2, 1, 0):
            raised = [wider(each) for wider, each in zip(self.raised[scale], given, strict=True)]
            x = functional.relu(self.merge[scale](torch.cat([raised[0], skips[scale], *raised[1:]], 1)))
            if scale > 0:
                given.insert(0, self.give[scale - 1](x))
        return x
