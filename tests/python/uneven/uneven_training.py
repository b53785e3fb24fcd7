# SPDX-License-Identifier: Apache-2.0
"""Trainings whose ranks take random unequal shares, and the same training in one process."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from atoll.weighting.batch_part import Part
from atoll.weighting.weights import Weights
from training import CLASSES, FEATURES

BATCH = 24
Shares = list[list[int]]  # by rank: the sizes of its parts
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4, foreach=False)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003, foreach=False)


def workers(number: int) -> dict[str, Any]:
    """Returns options of a loader whose workers are forked, as in an ordinary program: the ranks of tests would
    spawn them, and each would import PyTorch again."""
    return {"num_workers": number, "multiprocessing_context": "fork" if number else None}


def batch(step: int, shape: Sequence[int] = (FEATURES,)) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all samples of a step."""
    chance = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, *shape, generator=chance, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (BATCH,), generator=chance)


def random_shares(size: int, steps: int, *, seed: int = 3, most_parts: int = 1, alike: bool = False) -> list[Shares]:
    """Returns, for each step, sizes that add up to BATCH, some of them 0. `alike`: all ranks have the same number of
    parts."""
    chance = random.Random(seed)
    steps_shares = []
    for _ in range(steps):
        cuts = sorted(chance.randint(0, BATCH) for _ in range(size - 1))
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, BATCH], strict=True)]
        parts = [chance.randint(1, most_parts) for _ in sizes]
        if alike:
            parts = [max(parts)] * size
        steps_shares.append([_split(share, of, chance) for share, of in zip(sizes, parts, strict=True)])
    return steps_shares


def _split(share: int, parts: int, chance: random.Random) -> list[int]:
    cuts = sorted(chance.randint(0, share) for _ in range(parts - 1))
    return sorted(end - begin for begin, end in zip([0, *cuts], [*cuts, share], strict=True))


Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def mean_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def train_alone(model: nn.Module, steps: int, optimizer: Optimizer = sgd, **data: Any) -> None:
    update = optimizer(model.parameters())
    for step in range(steps):
        update.zero_grad()
        mean_loss(model, *batch(step, **data)).backward()
        update.step()


def train_together(
    model: nn.Module, weights: Weights | None, rank: int, shares: list[Shares], optimizer: Optimizer = sgd, **data: Any
) -> None:
    """Trains this rank's part of the same training; without weights as stock DDP would."""
    update = optimizer(model.parameters())
    device = next(model.parameters()).device
    for step, by_rank in enumerate(shares):
        update.zero_grad()
        begin = sum(map(sum, by_rank[:rank]))
        for index, size in enumerate(by_rank[rank]):
            inputs, targets = batch(step, **data)
            rows = slice(begin, begin + size) if size else slice(0, 1)
            begin += size
            if weights is not None:
                last = index == len(by_rank[rank]) - 1
                weights.begin(Part(size, lambda: BATCH, index == 0, last))
            mean_loss(model, inputs[rows].to(device), targets[rows].to(device)).backward()
        update.step()
