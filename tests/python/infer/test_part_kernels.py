# SPDX-License-Identifier: Apache-2.0
"""Parts have the same bits as the rows of the whole, even if PyTorch would choose another kernel for the part."""

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

from atoll.infer import capture
from captured import Sides

SEEDS = range(12)
# More than the 20480 elements from which PyTorch uses oneDNN for a convolution; most parts have fewer.
CONVOLUTIONS = {
    "conv1d": (lambda: nn.Conv1d(16, 8, 5, padding=2), (1, 16, 1300), 2),
    "conv2d": (lambda: nn.Conv2d(16, 24, 3, padding=1), (1, 16, 40, 34), 2),
    "columns": (lambda: nn.Conv2d(16, 24, 3, stride=2), (1, 16, 40, 34), 3),
    "named": (lambda: nn.Conv2d(16, 24, 3, padding="same"), (1, 16, 40, 34), 2),
    "grouped": (lambda: nn.Conv2d(16, 24, 3, groups=4), (2, 16, 40, 34), 2),
    "conv3d": (lambda: nn.Conv3d(4, 8, 3, padding=1), (1, 4, 18, 17, 18), 2),
}


class Padded(nn.Module):
    """Pads the rows that are used, so that parts are views with gaps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x + 1)[:, :, 1:-1].abs()


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def differing(module: nn.Module, shape: tuple[int, ...], dim: int) -> list[float]:
    """Returns, for random divisions, the share of the answer's elements whose bits differ from the whole's."""
    torch.manual_seed(7)
    module.eval()
    x = torch.randn(shape)
    bundle = capture(module, (x,))
    sides = Sides.of(bundle, [x])
    (whole,) = sides.run()
    assert torch.equal(whole, module(x))
    shares = []
    for seed in SEEDS:
        division = json.loads(sides.division(dim, "random", seed=seed)) | {"chunks": 1 + seed % 3}
        (found,) = sides.divided(json.dumps(division))
        shares.append((found != whole).double().mean().item())
    return shares


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    make, shape, dim = CONVOLUTIONS[name]
    torch.manual_seed(3)
    assert not any(differing(make(), shape, dim))


def test_batch_norm() -> None:
    """At the end of each channel, where elements do not fill a vector, one may be rounded differently."""
    module = nn.BatchNorm2d(8)
    module.running_mean, module.running_var = torch.randn(8), torch.rand(8) + 0.5
    assert max(differing(Padded(module), (1, 8, 31, 25), 2)) < 0.06


@pytest.mark.parametrize("function", [torch.nn.functional.silu, torch.sigmoid, torch.nn.functional.gelu, torch.tanh])
def test_functions(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert max(differing(Padded(Function(function)), (1, 8, 31, 25), 2)) < 0.01
