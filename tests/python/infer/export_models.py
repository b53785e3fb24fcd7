# SPDX-License-Identifier: Apache-2.0
"""Small networks of the kinds that are split, with random weights, and an example for each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _normed(channels: int) -> nn.BatchNorm2d:
    """With statistics as after a training."""
    norm = nn.BatchNorm2d(channels)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(std=0.1)
    norm.running_var.uniform_(0.5, 1.5)
    return norm


def conv(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> nn.Module:
    layers = [nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False), _normed(outside)]
    return nn.Sequential(*layers, *([act(inplace=True)] if act else []))


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(inside, outside, 3, stride), conv(outside, outside, act=None))
        self.side = conv(inside, outside, 1, stride, act=None) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.side(x), inplace=True)


def resnet() -> Example:
    stem = [conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*stem, *blocks), (torch.randn(1, 3, 37, 41),), {}


def vgg() -> Example:
    layers = [conv(3, 8), conv(8, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d(2, ceil_mode=True)]
    head = [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(784, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 5)]
    return nn.Sequential(*layers, *head), (torch.randn(2, 3, 33, 35),), {}


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, 3, 2)
        self.layers = nn.ModuleList(nn.Sequential(_normed(8 + 4 * n), nn.ReLU(), conv(8 + 4 * n, 4)) for n in range(3))
        self.transition = nn.Sequential(conv(20, 10, 1), nn.AvgPool2d(2, count_include_pad=False, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, functional.dropout(layer(x), 0.5, self.training)], 1)
        x = self.transition(x)
        return x.reshape(x.shape[0], x.shape[1], -1).mean(-1)


def densenet() -> Example:
    return Dense(), (torch.randn(1, 3, 31, 29),), {}


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(scale))


def mobilenet() -> Example:
    layers = [conv(3, 8, 3, 2, act=nn.Hardswish), conv(8, 24, 1, act=nn.Hardswish),
              conv(24, 24, 5, 2, groups=24, act=nn.Hardswish), Squeeze(24), conv(24, 12, 1, act=None),
              nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(12, 7), nn.Hardswish(), nn.Dropout(0.2)]  # fmt: skip
    return nn.Sequential(*layers), (torch.randn(1, 3, 35, 33),), {}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = conv(2, 8), conv(8, 16), conv(16, 16)
        self.up, self.third = nn.ConvTranspose2d(16, 8, 2, 2), conv(16, 8)
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        wide = functional.interpolate(bottom, scale_factor=2, mode="bilinear", align_corners=False)
        merged = self.third(torch.cat([first, self.up(second + wide)], 1))
        nearest = functional.interpolate(merged, size=(30, 20), mode="nearest")
        return {"mask": self.last(merged), "small": nearest.argmax(1)}


def unet() -> Example:
    return UNet(), (torch.randn(1, 2, 24, 32),), {}


class Occupancy(nn.Module):
    """Voxels as bytes in, a score for each voxel out."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv3d(4, 4, 3, 1, 2, dilation=2), nn.ReLU())
        self.up = nn.ConvTranspose3d(4, 2, 3, 2, 1, output_padding=1)

    def forward(self, voxels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.down(voxels.to(torch.float32) / 255)
        x = functional.interpolate(self.up(x), scale_factor=(1, 2, 2), mode="trilinear", align_corners=True)
        return torch.sigmoid(x), x.amax(dim=(2, 3, 4)) > 0


def occupancy() -> Example:
    return Occupancy(), (torch.randint(0, 256, (1, 1, 8, 12, 10), dtype=torch.uint8),), {}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


class ViT(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.register_buffer("places", torch.randn(1, 17, width), persistent=False)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 3)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = x + self.attention(self.norm(x))
        return self.head((x + self.mlp(x))[:, 0]).softmax(-1)


def vit() -> Example:
    return ViT(), (torch.randn(2, 3, 32, 32),), {}


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


def bert() -> Example:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
                        max_position_embeddings=32)  # fmt: skip
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    return BertModel(config), (), {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask}


def llama() -> Example:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, intermediate_size=48, max_position_embeddings=32,
                         tie_word_embeddings=True)  # fmt: skip
    return LlamaForCausalLM(config), (torch.randint(0, 50, (1, 11)),), {"use_cache": False}


EXAMPLES: dict[str, Callable[[], Example]] = {
    made.__name__: made
    for made in (resnet, vgg, densenet, mobilenet, unet, occupancy, vit, recurrent, encoder, bert, llama)
}


def example(name: str) -> Example:
    """In eval mode, the same weights every time."""
    torch.manual_seed(1)
    module, args, kwargs = EXAMPLES[name]()
    return module.eval(), args, kwargs
