# SPDX-License-Identifier: Apache-2.0
"""Several loaders of one model: each step has its own loader's weights and times, or it is an error."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.loading.timing import Summary
from client_ranks import on_layouts
from test_loader import BATCH, EXACT, UNMEASURED, dataset, train, train_alone, wrapped
from training import check_close
from uneven_training import sgd

SEED = 4
Evaluate = Callable[[], None]


def loader_of(model: nn.Module, **options: Any) -> atoll.DataLoader:
    given = {"policy": "fixed", "shares": [1, 3], "settings": UNMEASURED} | options
    return atoll.DataLoader(dataset(), BATCH, model=model, **given)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def evaluate(model: nn.Module, batches: Any) -> None:
    for batch in batches:
        loss_of(model, batch)


def again(loader: atoll.DataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def ways_to_evaluate(model: DistributedDataParallel, loader: atoll.DataLoader) -> list[Evaluate]:
    """Ways to evaluate: all batches, the first step, one batch, and successive batches of a loop that stays open."""
    opened = again(loader)

    def first_step() -> None:
        for batch in loader:
            evaluate(model, [batch])
            if loader.step_complete:
                break

    return [
        lambda: evaluate(model, loader), first_step, lambda: evaluate(model, [next(iter(loader))]),
        lambda: evaluate(model, [next(opened)]),
    ]  # fmt: skip


@on_layouts("AA")
def test_evaluation_inside_a_step(rank: int, size: int) -> None:
    """Evaluates after the backward pass and between the parts of a step, and also before it unless the loop stays
    open, which would then determine the weights. All ranks have the same number of parts in a step, because
    evaluations are collective."""
    reference = train_alone(1, SEED)
    for micro_batch in (None, 2 if rank == 0 else 6):
        for way in range(4):
            model = wrapped()
            loader = loader_of(model, seed=SEED, micro_batch=micro_batch)
            evaluates = ways_to_evaluate(model, loader_of(model, shares=[2, 1], micro_batch=4))[way]
            update = sgd(model.parameters())
            begins = True
            for batch in loader:
                if begins and way < 3:
                    evaluates()
                loss_of(model, batch).backward()
                if begins:
                    evaluates()
                begins = loader.step_complete
                if begins:
                    update.step()
                    update.zero_grad()
            check_close(model.module, reference, EXACT)


@on_layouts("AA")
def test_an_open_loop_ends_inside_a_later_step(rank: int, size: int) -> None:
    """The loop ends before that step's backward pass, which then has the step's own weights."""
    model = wrapped()
    loader, rest = loader_of(model, seed=SEED), iter(loader_of(model, shares=[2, 1]))
    update = sgd(model.parameters())
    for step, batch in enumerate(loader):
        if step == 6:  # the last step, which has fewer samples than others
            evaluate(model, rest)
        loss_of(model, batch).backward()
        if step < 6:
            evaluate(model, [next(rest)])
        update.step()
        update.zero_grad()
    check_close(model.module, train_alone(1, SEED), EXACT)


@on_layouts("AA")
def test_losses_of_two_loaders_in_one_backward_pass(rank: int, size: int) -> None:
    """Otherwise one loader's batch would have the other's weight."""

    def together(model: nn.Module, loaders: Any, done: list[Any]) -> None:
        for batches in zip(*loaders, strict=True):
            sum(loss_of(model, batch) for batch in batches).backward()
            done.append(batches)

    for reverse in (False, True):
        model = wrapped()
        loaders = [loader_of(model), loader_of(model, shares=[3, 1])]
        done: list[Any] = []
        with pytest.raises(RuntimeError, match=r"weighted as those of another atoll.DataLoader, .* call backward\(\)"):
            together(model, reversed(loaders) if reverse else loaders, done)
        assert len(done) == 1


@on_layouts("AA")
def test_losses_of_two_loaders_one_after_another(rank: int, size: int) -> None:
    """Each backward pass runs before the next loader is used, so the step is that of one process with both batches."""
    model, alone = wrapped(), wrapped().module
    first, second = loader_of(model, seed=SEED), again(loader_of(model, shares=[3, 1], seed=SEED + 1))
    update, update_alone = sgd(model.parameters()), sgd(alone.parameters())
    orders = [atoll.plan.permutation(len(dataset()), seed, 0) for seed in (SEED, SEED + 1)]
    for step, batch in enumerate(first):
        loss_of(model, batch).backward()
        loss_of(model, next(second)).backward()
        for order in orders:
            loss_of(alone, dataset()[torch.as_tensor(order)[step * BATCH :][:BATCH]]).backward()
        for each in (update, update_alone):
            each.step()
            each.zero_grad()
    check_close(model.module, alone, EXACT)


@on_layouts("AA")
def test_times_are_those_of_the_loader_that_trains(rank: int, size: int) -> None:
    """Also if another loader was made after it, or trains in between."""
    model = wrapped()
    settings = atoll.training.Settings(measure=False, update_interval=2, watch=atoll.training.Watch(live=False))
    loaders = [loader_of(model, policy="minmax", shares=None, settings=settings) for _ in range(2)]
    seen: list[list[Summary]] = [[], []]
    for loader, summaries in zip(loaders, seen, strict=True):
        follower = loader.planner._follower
        observe = follower.observe

        def note(own: Summary, *others: Any, summaries: Any = summaries, observe: Any = observe) -> Any:
            summaries.append(own)
            return observe(own, *others)

        follower.observe = note  # type: ignore[method-assign]
    train(model, loaders[0], 1)
    evaluate(model, loaders[1])
    train(model, loaders[0], 1)
    trained, evaluated = seen
    assert len(trained) == 7
    assert all(own.compute > 0 and own.exposed is not None for own in trained)
    assert evaluated
    assert all(own.compute == 0 for own in evaluated)
