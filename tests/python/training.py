# SPDX-License-Identifier: Apache-2.0
"""A small network, its data, and the training of one process with all ranks' shares."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn

FEATURES, CLASSES, SHARE = 12, 5, 4

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor, int], torch.Tensor]


def network(dtype: torch.dtype = torch.float64, place: str = "cpu") -> nn.Module:
    torch.manual_seed(7)
    layers = [nn.Linear(FEATURES, 33), nn.Tanh(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, CLASSES)]
    return nn.Sequential(*layers).to(dtype).to(place)


def share(
    step: int, rank: int, dtype: torch.dtype = torch.float64, place: str | torch.device = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the samples of one rank in one step, which are the same on every rank and device."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(SHARE, FEATURES, generator=random, dtype=torch.float64).to(dtype)
    return inputs.to(place), torch.randint(CLASSES, (SHARE,), generator=random).to(place)


def cross_entropy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, rank: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    # The foreach variant, the default on accelerators alone, differs in the last bits.
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


def train_alone(model: nn.Module, size: int, steps: int, loss: Loss = cross_entropy) -> list[float]:
    """Trains in one process that takes every rank's share and averages the gradients. Returns the mean loss of each
    step."""
    dtype = next(model.parameters()).dtype
    update = optimizer(model.parameters())
    losses = []
    for step in range(steps):
        update.zero_grad()
        shares = [loss(model, *share(step, rank, dtype), rank) / size for rank in range(size)]
        for part in shares:
            part.backward()
        update.step()
        losses.append(sum(part.item() for part in shares))
    return losses


def train_together(model: nn.Module, rank: int, steps: int, loss: Loss = cross_entropy) -> list[float]:
    """Trains this rank's part of the same training on the model's device. Returns its own losses."""
    like = next(model.parameters())
    update = optimizer(model.parameters())
    losses = []
    for step in range(steps):
        update.zero_grad()
        part = loss(model, *share(step, rank, like.dtype, like.device), rank)
        part.backward()
        update.step()
        losses.append(part.item())
    return losses


def check_equal_bits(model: nn.Module) -> None:
    """Checks that all ranks hold the same bits in every parameter."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    for rank, other in enumerate(others):
        assert torch.equal(other, flat), f"parameters differ from those of rank {rank}"


def check_close(model: nn.Module, reference: nn.Module, relative: float) -> None:
    """Checks that parameters are within `relative` of the reference's, relative to its largest one."""
    expected = dict(reference.named_parameters())
    largest = max(parameter.abs().max().item() for parameter in expected.values())
    for name, parameter in model.named_parameters():
        difference = (parameter.cpu() - expected[name]).abs().max().item()
        assert difference <= relative * largest, f"{name} is {difference} off"
