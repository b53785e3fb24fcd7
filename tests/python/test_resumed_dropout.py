# SPDX-License-Identifier: Apache-2.0
"""Trainings with dropout that resume: the same random numbers as without the interruption."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import atoll
from support import Ranks


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), 1.0 + index)


def dropout_losses(rank: int, folder: str, until: int) -> list[float]:
    """Trains with dropout from the newest checkpoint on, for steps of which an epoch has five."""
    torch.manual_seed(3 + rank)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    update = torch.optim.SGD(net.parameters(), lr=0.001)
    settings = atoll.training.Settings(measure=False)
    loader = atoll.DataLoader(Numbers(), 4, model=net, policy="equal", settings=settings)
    saved = atoll.Checkpointer(folder, model=net, update=update, loader=loader, every=until, random=True)
    saved.resume()
    losses: list[float] = []
    while saved.steps < until:
        for inputs in loader:
            update.zero_grad()
            loss = net(inputs).square().mean()
            loss.backward()
            update.step()
            losses.append(loss.item())
            saved.step()
            if saved.steps == until:
                break
    return losses


@pytest.mark.parametrize("stop", [3, 5])
def test_dropout_is_that_of_the_undisturbed_training(tmp_path: Path, two_ranks: Ranks, stop: int) -> None:
    undisturbed = two_ranks.run(dropout_losses, str(tmp_path / "a"), 10)
    first = two_ranks.run(dropout_losses, str(tmp_path / "b"), stop)
    rest = two_ranks.run(dropout_losses, str(tmp_path / "b"), 10)
    assert [before + after for before, after in zip(first, rest, strict=True)] == undisturbed
