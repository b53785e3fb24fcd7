# SPDX-License-Identifier: Apache-2.0
"""Backward passes that belong to no step are errors, and code that does not use the loader works as if it did not
exist."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import atoll
from client_ranks import on_layouts
from test_loader import BATCH, EXACT, SAMPLES, UNMEASURED, check_exactly_once, dataset, on_all_ranks, train, wrapped
from training import check_close, network

SEED = 4
AFTER = "before the first batch of atoll.DataLoader, or after the last one"


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def ahead(loader: atoll.DataLoader) -> Iterator[Any]:
    """Fetches the next batch before it yields the current one, as prefetchers do."""
    batches = iter(loader)
    held = next(batches)
    for batch in batches:
        yield held
        held = batch
    yield held


def sharded() -> nn.Module:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


@on_layouts("AA")
def test_batches_that_are_fetched_ahead(rank: int, size: int) -> None:
    """All steps would have the weights of the next ones."""

    def epoch(model: nn.Module, loader: atoll.DataLoader, done: list[Any]) -> None:
        for batch in ahead(loader):
            loss_of(model, batch).backward()
            done.append(batch)

    for make, options in ((wrapped, {}), (wrapped, {"micro_batch": 5}), (sharded, {})):
        model = make()
        loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="equal", settings=UNMEASURED, **options)
        done: list[Any] = []
        with pytest.raises(RuntimeError, match=AFTER):
            epoch(model, loader, done)
        assert len(done) >= len(loader) - 1


def check_plain(model: DistributedDataParallel, rank: int) -> None:
    """A backward pass over the model gives the mean of what each rank computes alone."""
    batch = dataset()[rank * 7 : rank * 7 + 3 + 4 * rank]
    alone = network()
    alone.load_state_dict(model.module.state_dict())
    loss_of(alone, batch).backward()
    loss_of(model, batch).backward()
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        dist.all_reduce(other.grad)
        torch.testing.assert_close(mine.grad, other.grad / dist.get_world_size(), rtol=EXACT, atol=EXACT)


@on_layouts("AA")
def test_training_goes_on_without_the_loader(rank: int, size: int) -> None:
    """With the same wrapper it is an error, with another one plain DistributedDataParallel; also after a loop that
    was left in the middle of a step."""
    for micro_batch in (None, 5):
        options: dict[str, Any] = {"policy": "fixed", "shares": [1, 3], "settings": UNMEASURED}
        model = wrapped()
        loader = atoll.DataLoader(dataset(), BATCH, model=model, micro_batch=micro_batch, **options)
        train(model, loader, 1)
        model.zero_grad()
        check_plain(DistributedDataParallel(model.module), rank)
        for batch in loader:
            loss_of(model, batch).backward()
            break
        model.zero_grad()
        check_plain(DistributedDataParallel(model.module), rank)
        train(model, loader, 2)
        with pytest.raises(RuntimeError, match=AFTER):
            loss_of(model, dataset()[:3]).backward()


@on_layouts("AA")
def test_a_loop_that_is_left_inside_a_step(rank: int, size: int) -> None:
    model = wrapped()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, micro_batch=5, settings=UNMEASURED)
    for _ in loader:
        assert not loader.step_complete
        assert not model.require_backward_grad_sync
        break
    assert model.require_backward_grad_sync
    batches = iter(loader)
    next(batches)
    older = batches
    batches = iter(loader)
    next(batches)
    del older
    assert not model.require_backward_grad_sync, "the newer loop's part is not the last one"
    batches.close()
    assert model.require_backward_grad_sync


@on_layouts("AA")
def test_one_batch_again_and_again(rank: int, size: int) -> None:
    """A common check of whether a model learns at all."""
    model, alone = wrapped(), network()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="fixed", shares=[1, 3], seed=SEED,
                              settings=UNMEASURED)  # fmt: skip
    batch = next(iter(loader))
    whole = dataset()[torch.as_tensor(atoll.plan.permutation(SAMPLES, SEED, 0))[:BATCH]]
    for _ in range(3):
        for net, of_step in ((model, batch), (alone, whole)):
            net.zero_grad()
            loss_of(net, of_step).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
    check_close(model.module, alone, EXACT)


@on_layouts("AA")
def test_a_place_set_inside_a_loop(rank: int, size: int) -> None:
    """The running loop would continue at its own place, and overwrite the one that was set."""
    model = wrapped()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, seed=SEED, settings=UNMEASURED)
    begun: list[int] = []
    state: dict[str, Any] = {}

    def set_inside(set_place: Any) -> None:
        nonlocal begun, state
        for batch in loader:
            loss_of(model, batch).backward()
            model.zero_grad()
            if not state:
                begun, state = batch[2].tolist(), loader.state_dict()
            elif loader.state_dict()["steps"] > state["steps"]:
                set_place()

    for set_place in (lambda: loader.load_state_dict(state), lambda: loader.set_epoch(3)):
        with pytest.raises(RuntimeError, match="load_state_dict or set_epoch has moved this"):
            set_inside(set_place)
    assert loader.epoch == 3
    check_exactly_once(train(model, loader, 1))
    loader.load_state_dict(state)
    (rest,) = train(model, loader, 1)
    check_exactly_once([begun + rest])


@on_layouts("AA")
def test_an_epoch_that_is_set_again_inside_its_loop(rank: int, size: int) -> None:
    model = wrapped()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=UNMEASURED)
    seen: list[int] = []
    for batch in loader:
        loader.set_epoch(0)
        loss_of(model, batch).backward()
        seen += batch[2].tolist()
    check_exactly_once([seen])


@on_layouts("AAA")
def test_a_group_of_other_ranks(rank: int, size: int) -> None:
    """Shares would add up to 1 over the loader's ranks, and gradients over the model's."""
    model = wrapped()
    group = dist.new_group([0, 1])
    if rank < 2:
        with pytest.raises(ValueError, match=r"the group has ranks \[0, 1\], .* added up over ranks \[0, 1, 2\]: pass"):
            atoll.DataLoader(dataset(), BATCH, model=model, group=group, settings=UNMEASURED)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, group=dist.new_group([2, 0, 1]), settings=UNMEASURED)
    assert on_all_ranks(loader.batch_sizes()) == [[8, 8, 8]] * size
