# SPDX-License-Identifier: Apache-2.0
"""Networks made of attention, for images and for texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from networks.parts import Residual


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


def _layer(attention: nn.Module, width: int) -> nn.Module:
    wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    mlp = nn.Sequential(nn.LayerNorm(width, 1e-6), wide, nn.GELU(), narrow)
    return nn.Sequential(Residual(nn.Sequential(nn.LayerNorm(width, 1e-6), attention)), Residual(mlp))


class ViT(nn.Module):
    """Dosovitskiy et al., 2020: an image's patches as words."""

    def __init__(
        self,
        image: tuple[int, int] = (224, 224),
        patch: int = 16,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        places = image[0] // patch * (image[1] // patch) + 1
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, places, width))
        self.layers = nn.Sequential(*(_layer(Attention(width, heads), width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def _windows(x: torch.Tensor, window: int) -> torch.Tensor:
    """(images, rows, columns, width) as (windows, places, width)."""
    images, rows, columns, width = x.shape
    x = x.reshape(images, rows // window, window, columns // window, window, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, width)


def _joined(x: torch.Tensor, window: int, rows: int, columns: int) -> torch.Tensor:
    """Joins windows to images with that many rows and columns."""
    x = x.reshape(-1, rows // window, columns // window, window, window, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, x.shape[-1])


def _areas(size: int, window: int, shift: int) -> torch.Tensor:
    """Returns a number for each place; places that are neighbours after the shift and before it have the same
    number."""
    places = torch.arange(size)
    return (places >= size - window).long() + (places >= size - shift).long()


def _apart(rows: int, columns: int, window: int, shifts: Sequence[int]) -> torch.Tensor:
    """Returns, for each window, the places that must not attend to each other, because they come from opposite
    borders."""
    areas = 3 * _areas(rows, window, shifts[0])[:, None] + _areas(columns, window, shifts[1])
    areas = _windows(areas[None, :, :, None], window).squeeze(-1)
    return areas[:, None, :] != areas[:, :, None]


class WindowAttention(nn.Module):
    """Attention within windows of one image, which may be shifted around its borders."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.1)  # by the distance of places
        ways = torch.arange(window)
        places = torch.stack(torch.meshgrid(ways, ways, indexing="ij")).flatten(1)
        steps = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("steps", (steps[0] * (2 * window - 1) + steps[1]).flatten(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:3]
        if rows % self.window or columns % self.window:
            x = functional.pad(x, (0, 0, 0, -columns % self.window, 0, -rows % self.window))
        high, wide = x.shape[1:3]
        shifts = [self.shift if size > self.window else 0 for size in (high, wide)]
        x = x.roll([-shift for shift in shifts], (1, 2)) if any(shifts) else x
        x = _joined(self._attended(_windows(x, self.window), high, wide, shifts), self.window, high, wide)
        x = x.roll(shifts, (1, 2)) if any(shifts) else x
        return x[:, :rows, :columns]

    def _attended(self, x: torch.Tensor, high: int, wide: int, shifts: Sequence[int]) -> torch.Tensor:
        windows, places, width = x.shape
        parts = self.qkv(x).reshape(windows, places, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.steps].reshape(places, places, self.heads).permute(2, 0, 1)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1) + bias
        if any(shifts):
            scores = scores + _apart(high, wide, self.window, shifts).to(x.dtype)[:, None] * -100.0
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(windows, places, width))


class _Merge(nn.Module):
    """Four places become one, with twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:3]
        if rows % 2 or columns % 2:
            x = functional.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Liu et al., 2021: every other layer's windows are shifted by half of one."""

    def __init__(
        self,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        width: int = 96,
        window: int = 7,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        layers: list[nn.Module] = [nn.LayerNorm(width)]
        for stage, (count, parts) in enumerate(zip(depths, heads, strict=True)):
            if stage > 0:
                layers.append(_Merge(width))
                width *= 2
            for place in range(count):
                shift = window // 2 if place % 2 else 0
                layers.append(_layer(WindowAttention(width, parts, window, shift), width))
        self.layers, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(self.patches(image).permute(0, 2, 3, 1)))
        return self.head(functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1).flatten(1))


def bert(**config: Any) -> nn.Module:
    """Devlin et al., 2018; as transformers has it, with its defaults."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**config))


def llama(**config: Any) -> nn.Module:
    """Touvron et al., 2023; as transformers has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**config))
