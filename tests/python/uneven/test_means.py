# SPDX-License-Identifier: Apache-2.0
"""loader.mean: the mean over the whole step, as one process would have it."""

import pytest
import torch
from torch import nn

import atoll
from client_ranks import on_layouts
from support import device
from test_loader import BATCH, SAMPLES, UNMEASURED, wrapped
from test_loader_steps import sentences, token_loss, valid_tokens
from training import network


def per_sample(inputs: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
    return inputs.square().sum(dim=(1, 2))


def expected(model: nn.Module, masked: bool) -> list[tuple[float, float]]:
    """Returns, for each step of one process, the loss and the mean of another value."""
    data = sentences()
    order = atoll.plan.permutation(SAMPLES, 0, 0)
    found = []
    for first in range(0, SAMPLES, BATCH):
        inputs, labels = data[order[first : first + BATCH]]
        if masked:
            valid = labels != -100
            other = (inputs.sum(2) * valid).sum() / valid.sum()
        else:
            other = per_sample(inputs, labels).mean()
        found.append((token_loss(model, inputs, labels).item() if masked else other.item(), other.item()))
    return found


def as_rows(values: list[tuple[float, ...]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@on_layouts("AA", "AAA", "aCb")
def test_means_of_unequal_masked_and_empty_batches(rank: int, size: int) -> None:
    """Each rank has as many batches per step as it needs. The second rank's share is often empty."""
    net = network()
    for masked in (False, True):
        for limit in (None, 2 + rank):
            model = wrapped()
            settings = atoll.training.Settings(measure=False, least=0)
            loader = atoll.DataLoader(
                sentences(), BATCH, model=model, policy="fixed", shares=[5, 0, 2][:size], micro_batch=limit,
                elements=valid_tokens if masked else None, settings=settings,
            )  # fmt: skip
            found = []
            for inputs, labels in loader:
                valid = labels != -100
                if masked:
                    other = (inputs.sum(2) * valid).sum() / valid.sum()
                    loss = token_loss(model.module, inputs.to(device()), labels.to(device()))
                else:
                    loss = other = per_sample(inputs, labels).mean()
                means = loader.mean(loss), loader.mean(other)
                assert all(mean.isnan() for mean in means) != loader.step_complete
                if loader.step_complete:
                    found.append(tuple(mean.item() for mean in means))
            torch.testing.assert_close(as_rows(found), as_rows(expected(net, masked)), rtol=1e-12, atol=0)


@on_layouts("AA")
def test_a_step_without_all_of_its_batches_is_refused(rank: int, size: int) -> None:
    loader = atoll.DataLoader(sentences(), BATCH, model=wrapped(), micro_batch=4, settings=UNMEASURED)
    for _ in loader:
        if loader.step_complete:
            with pytest.raises(RuntimeError, match="for 1 of this step's 3 batches: call it for each of them"):
                loader.mean(1.0)
            break


@on_layouts("AA")
def test_there_is_no_mean_outside_the_loop(rank: int, size: int) -> None:
    """It is an error on every rank, so that none waits for others."""
    for options in ({"model": wrapped(), "settings": UNMEASURED}, {"policy": "equal"}):
        loader = atoll.DataLoader(sentences(), BATCH, **options)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="there is no current batch; call it in the loop"):
                loader.mean(1.0)
            means = [loader.mean(1.0 + rank).item() for _ in loader]
            assert means[0] == 1.5
        next(iter(loader))
        assert loader.mean(2.0).item() == 2.0
