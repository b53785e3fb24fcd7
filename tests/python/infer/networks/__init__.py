# SPDX-License-Identifier: Apache-2.0
"""Published networks with random weights, each at its published size and at a size for every test run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from networks.attention import Swin, ViT, bert, llama
from networks.convolutional import convnext, densenet, regnet, resnet, vgg
from networks.dense import Detector, Occupancy, UNet
from networks.mobile import EFFICIENTNET_B0, MOBILENET_V3_LARGE, efficientnet, mobilenet

Shape = tuple[int, ...]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def images(shape: Shape) -> Inputs:
    return (torch.randn(shape),), {}


def pixels(shape: Shape) -> Inputs:
    return (torch.randint(0, 256, shape, dtype=torch.uint8),), {}


def voxels(shape: Shape) -> Inputs:
    return ((torch.rand(shape) < 0.1).to(torch.uint8),), {}


def prompts(shape: Shape) -> Inputs:
    return (torch.randint(0, 50, shape),), {"use_cache": False}


def masked_texts(shape: Shape) -> Inputs:
    """Returns texts of which the last one ends early."""
    mask = torch.ones(shape, dtype=torch.int64)
    mask[-1, shape[1] * 2 // 3 :] = 0
    return (), {"input_ids": torch.randint(0, 50, shape), "attention_mask": mask}


@dataclass(frozen=True)
class Network:
    make: Callable[..., nn.Module]
    parameters: int  # of the published network
    full: dict[str, Any]
    full_shape: Shape  # of the input
    reduced: dict[str, Any]
    shape: Shape
    inputs: Callable[[Shape], Inputs] = images
    dims: tuple[int, ...] = (2, 3)  # of the first input, along which it is divided: rows and columns, or tokens
    classes: int = 1  # the dimension of the first output along which one value is the largest


IMAGE = (1, 3, 224, 224)
FEW = {"classes": 200}

# Parameters are counted by torchvision and transformers unless stated otherwise. Networks that take images of any size
# get smaller ones than the robots' cameras give: computation grows with the size, parameters do not.
NETWORKS = {
    "resnet152": Network(
        resnet,
        60_192_808,
        {"blocks": (3, 8, 36, 3)},
        IMAGE,
        {"blocks": (1, 2, 2, 1), "width": 8, **FEW},
        (1, 3, 61, 53),
    ),
    "resnet101": Network(
        resnet,
        44_549_160,
        {"blocks": (3, 4, 23, 3)},
        IMAGE,
        {"blocks": (1, 1, 2, 1), "width": 8, **FEW},
        (1, 3, 45, 67),
    ),
    "vgg19": Network(
        vgg,
        143_667_240,
        {},
        IMAGE,
        {"repeats": (1, 1, 2, 1, 1), "width": 8, "hidden": 64, **FEW},
        (1, 3, 67, 93),
    ),
    "vgg19_bn": Network(
        vgg,
        143_678_248,
        {"normed": True},
        IMAGE,
        {"repeats": (1, 1, 2, 1, 1), "width": 8, "hidden": 64, "normed": True, **FEW},
        (1, 3, 93, 67),
    ),
    "densenet121": Network(
        densenet,
        7_978_856,
        {"blocks": (6, 12, 24, 16)},
        IMAGE,
        {"blocks": (2, 3, 2), "growth": 8, **FEW},
        (1, 3, 51, 61),
    ),
    "convnext": Network(  # ConvNeXt-T
        convnext,
        28_589_128,
        {"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768)},
        IMAGE,
        {"depths": (1, 2, 1), "widths": (8, 16, 32), **FEW},
        (1, 3, 61, 75),
    ),
    "regnet": Network(  # RegNetX-16GF
        regnet,
        54_278_536,
        {"depths": (2, 6, 13, 1), "widths": (256, 512, 896, 2048), "group": 128},
        IMAGE,
        {"depths": (1, 2, 1), "widths": (16, 24, 48), "group": 8, "stem": 8, **FEW},
        (1, 3, 49, 57),
    ),
    "mobilenet": Network(
        mobilenet,
        5_483_032,
        {"rows": MOBILENET_V3_LARGE},
        IMAGE,
        {
            "rows": (
                (3, 8, 8, False, nn.ReLU, 1),
                (3, 24, 12, False, nn.ReLU, 2),
                (5, 36, 16, True, nn.ReLU, 2),
                (3, 48, 16, False, nn.Hardswish, 1),
                (5, 64, 20, True, nn.Hardswish, 2),
            ),
            "stem": 8,
            "last": 64,
            **FEW,
        },
        (1, 3, 61, 49),
    ),
    "efficientnet": Network(
        efficientnet,
        5_288_548,
        {"rows": EFFICIENTNET_B0},
        IMAGE,
        {"rows": ((1, 3, 1, 8, 1), (6, 3, 2, 12, 2), (6, 5, 2, 16, 1)), "stem": 8, **FEW},
        (1, 3, 57, 65),
    ),
    # As milesial/Pytorch-UNet counts it, for three channels and two classes.
    "unet": Network(
        UNet,
        31_037_698,
        {},
        (1, 3, 160, 160),
        {"widths": (6, 12, 24), "classes": 4},
        (1, 3, 45, 38),
    ),
    # 77,003,244 when the norms are folded into the convolutions: the 77.0032 million of Intra-DP's published profile.
    "detector": Network(
        Detector,
        77_047_852,
        {},
        (1, 3, 256, 384),
        {"widths": (8, 8, 16, 24, 32), "depths": (1, 1, 1, 1), "depth": 1},
        (1, 3, 64, 96),
        pixels,
        classes=-1,
    ),
    # LMSCNet's authors say 0.35 million.
    "occupancy": Network(
        Occupancy,
        348_044,
        {},
        (1, 1, 128, 32, 64),
        {"height": 8, "planes": 4},
        (1, 1, 24, 8, 16),
        voxels,
        (2, 4),
    ),
    "vit": Network(  # ViT-B/16
        ViT,
        86_567_656,
        {},
        IMAGE,
        {"image": (32, 48), "patch": 8, "width": 24, "heads": 3, "layers": 2, **FEW},
        (1, 3, 32, 48),
    ),
    "swin": Network(  # Swin-T
        Swin,
        28_288_354,
        {},
        IMAGE,
        {"depths": (2, 2), "heads": (2, 4), "width": 12, "window": 4, **FEW},
        (1, 3, 36, 44),
    ),
    "bert": Network(  # BERT-base
        bert,
        109_482_240,
        {},
        (1, 128),
        {
            "vocab_size": 50,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
        },
        (2, 9),
        masked_texts,
        (1, 0),
        -1,
    ),
    # SmolLM-360M, which has LLaMA's architecture, since seven billion weights and a float64 reference need 80 GB.
    "llama": Network(
        llama,
        361_821_120,
        {
            "vocab_size": 49152,
            "hidden_size": 960,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "intermediate_size": 2560,
            "tie_word_embeddings": True,
        },
        (1, 32),
        {
            "vocab_size": 50,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
        },
        (1, 11),
        prompts,
        (1,),
        -1,
    ),
}


def _train_norms(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Gives every batch norm the statistics of these inputs, as after one pass of training: with those of a new
    network, values would grow with every layer."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            module(*args, **kwargs)
    for norm in norms:
        norm.eval()
        norm.momentum = 0.1


def example(name: str, full: bool = False) -> Example:
    """Returns the network in eval mode after one pass of training, at its published or reduced size, with the same
    weights every time."""
    network = NETWORKS[name]
    torch.manual_seed(1)
    module = network.make(**(network.full if full else network.reduced)).eval()
    shape = network.full_shape if full else network.shape
    _train_norms(module, *network.inputs((2 if full else 4, *shape[1:])))
    return module, *network.inputs(shape)
