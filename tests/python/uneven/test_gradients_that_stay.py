# SPDX-License-Identifier: Apache-2.0
"""Gradients that outlive a step of the loader: each step in them keeps its own weights."""

import contextlib
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import atoll
from client_ranks import on_layouts
from lives import random_plans
from support import device, later
from test_loader import BATCH, EXACT, SAMPLES, dataset, wrapped
from test_loader_steps import sentences, token_loss, valid_tokens
from training import check_close, network
from uneven_training import sgd

SEED, EPOCHS, EVERY = 4, 2, 3
STEPS = EPOCHS * -(-SAMPLES // BATCH)


def train_alone() -> nn.Module:
    """Trains in one process; the optimizer steps after every third global batch, with the sum of their gradients."""
    model, data, steps = network(), sentences(), 0
    update = sgd(model.parameters())
    for epoch in range(EPOCHS):
        order = torch.as_tensor(atoll.plan.permutation(SAMPLES, SEED, epoch))
        for first in range(0, SAMPLES, BATCH):
            token_loss(model, *data[order[first : first + BATCH]]).backward()
            steps += 1
            if steps % EVERY == 0:
                update.step()
                update.zero_grad()
    return model


def train(model: DistributedDataParallel, loader: atoll.DataLoader, without_sync: bool) -> None:
    update = sgd(model.parameters())
    steps = 0
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            stays = without_sync and (steps + 1) % EVERY != 0
            with model.no_sync() if stays else contextlib.nullcontext():
                token_loss(model, inputs.to(device()), labels.to(device())).backward()
            if not loader.step_complete:
                continue
            steps += 1
            if steps % EVERY == 0:
                update.step()
                update.zero_grad(set_to_none=steps % 2 == 0)
    assert steps == STEPS


def loader_of(model: nn.Module, size: int, micro_batch: int | None) -> atoll.DataLoader:
    """Returns a loader whose plan changes repeatedly; some shares are empty."""
    plans = random_plans(size, BATCH, STEPS, random.Random(5))
    watch = atoll.training.Watch(live=False)
    settings = atoll.training.Settings(measure=False, replay=plans, update_interval=1, watch=watch)
    return atoll.DataLoader(sentences(), BATCH, model=model, seed=SEED, micro_batch=micro_batch, settings=settings,
                            elements=valid_tokens)  # fmt: skip


@on_layouts(later("AA"), later("AAA"), "aCb")
def test_steps_add_up(rank: int, size: int) -> None:
    """Each rank has as many parts as it needs, sometimes only one rank has several; gradients are reduced after each
    step, or not."""
    reference = train_alone()
    for micro_batch in (None, 2 + rank, 3 if rank == 1 else None):
        for without_sync in (False, True):
            model = wrapped()
            train(model, loader_of(model, size, micro_batch), without_sync)
            check_close(model.module, reference, EXACT)


@on_layouts("AAA")
def test_with_a_hook_of_the_user(rank: int, size: int) -> None:
    """The hook is registered before or after the loader is made."""
    reference = train_alone()
    for before in (True, False):
        for micro_batch in (None, 2 + rank):
            for without_sync in (False, True):
                model = wrapped()
                if before:
                    model.register_comm_hook(None, default_hooks.allreduce_hook)
                loader = loader_of(model, size, micro_batch)
                if not before:
                    model.register_comm_hook(None, default_hooks.allreduce_hook)
                train(model, loader, without_sync)
                check_close(model.module, reference, EXACT)


@on_layouts("AA")
def test_sharded_gradients_that_stay_are_refused(rank: int, size: int) -> None:
    model: Any = fully_shard(network())
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(measure=False))

    def steps() -> None:
        for inputs, targets, _ in loader:
            model.set_requires_gradient_sync(False)
            nn.functional.cross_entropy(model(inputs), targets).backward()

    with pytest.raises(RuntimeError, match=r"set_requires_gradient_sync\(False\): .* raise the loader's global_batch"):
        steps()
    model.set_requires_gradient_sync(True)
    model.set_gradient_divide_factor(1.0)
    with pytest.raises(RuntimeError, match=r"set_gradient_divide_factor: .*; remove it"):
        next(iter(loader))
    model.set_gradient_divide_factor(float(size))
    assert next(iter(loader))
