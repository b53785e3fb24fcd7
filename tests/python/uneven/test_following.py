# SPDX-License-Identifier: Apache-2.0
"""Plans follow the training's times, change at the same step on all ranks, and lose or repeat no sample."""

import gc
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.loading.timing import StepTimes
from atoll.watching.options import Watch
from client_ranks import on_layouts
from support import Ranks, device, later, warnings_of_plans
from test_loader import BATCH, EXACT, Numbers, check_exactly_once, dataset, on_all_ranks, train, train_alone, wrapped
from training import check_close, network
from uneven_training import workers


class Paced:
    """StepTimes of a device whose samples take the time that a test chooses: `pace(step)` seconds each."""

    def __init__(self, rank: int, paces: Any) -> None:
        self._rank, self._paces, self._step = rank, paces, 0

    def put_into(self, loader: atoll.DataLoader) -> None:
        times = loader.planner._times

        def take() -> Any:
            taken = StepTimes.take(times)
            step = loader._steps
            batch = loader.planner._book.at(step - 1).batches[self._rank]
            return type(taken)(self._paces(self._rank, step) * batch, taken.input, taken.wall)

        times.take = take  # type: ignore[method-assign]


def slow_later(rank: int, step: int) -> float:
    """Returns the pace: rank 0 is twice as slow as the others before step 8, and as fast afterwards."""
    return 2e-3 if rank == 0 and step < 8 else 1e-3


@on_layouts(later("AAA"), "ab")
def test_the_plan_follows(rank: int, size: int) -> None:
    for number in (0, 2):
        model = wrapped()
        settings = atoll.training.Settings(measure=False, update_interval=2, patience=1)
        loader = atoll.DataLoader(Numbers(), BATCH, model=model, seed=4, settings=settings, **workers(number))
        Paced(rank, slow_later).put_into(loader)
        assert len(set(loader.batch_sizes())) == 1
        check_exactly_once(train(model, loader, 4))
        history = loader.planner.history()
        assert on_all_ranks(history) == [history] * size
        slow = {2: [8, 16], 3: [5, 10, 9]}[size]
        assert sorted(history[1]["batches"]) == sorted(slow)
        assert history[1]["batches"][0] == min(slow)
        assert loader.batch_sizes() == history[0]["batches"], "equally fast again"
        check_close(model.module, train_alone(4, seed=4), EXACT)


@on_layouts("AAA")
def test_recorded_plans_are_replayed(rank: int, size: int) -> None:
    history: list[dict[str, Any]] = []
    for _ in range(2):
        settings = atoll.training.Settings(measure=False, update_interval=2, patience=1, replay=history or None)
        model = wrapped()
        loader = atoll.DataLoader(Numbers(), BATCH, model=model, seed=4, settings=settings)
        if not history:
            Paced(rank, slow_later).put_into(loader)
        train(model, loader, 3)
        assert not history or loader.planner.history() == history
        history = loader.planner.history()
    assert len(history) == 3


@on_layouts("AA")
def test_a_replay_resumes_with_the_plan_of_its_step(rank: int, size: int) -> None:
    replay = [{"step": 0, "batches": [12, 12]}, {"step": 6, "batches": [4, 20]}, {"step": 9, "batches": [20, 4]}]
    settings = atoll.training.Settings(measure=False, update_interval=2, replay=replay)

    def made() -> atoll.DataLoader:
        return atoll.DataLoader(Numbers(), BATCH, model=wrapped(), settings=settings)

    loader = made()
    shares = [len(batch[0]) for batch in itertools.islice(loader, 5)]
    assert shares == [12] * 5
    resumed = made()
    for steps, wanted in ((7, [4, 20]), (20, [20, 4]), (5, [12, 12])):
        resumed.load_state_dict({**loader.state_dict(), "steps": steps})
        assert resumed.batch_sizes() == wanted


@on_layouts("AA")
def test_frozen_plans_stay(rank: int, size: int) -> None:
    model = wrapped()
    settings = atoll.training.Settings(measure=False, update_interval=1, patience=1)
    loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
    Paced(rank, slow_later).put_into(loader)
    loader.planner.freeze()
    train(model, loader, 1)
    assert len(loader.planner.history()) == 1


def train_until_frozen(model: nn.Module, loader: atoll.DataLoader, freezes_at: int | None) -> None:
    if freezes_at == 0:
        loader.planner.freeze()
    for step, (inputs, targets, _) in enumerate(loader, start=1):
        if step == freezes_at:
            loader.planner.freeze()
        nn.functional.cross_entropy(model(inputs), targets).backward()


# Proves E-4.
@on_layouts("AA")
def test_plans_that_differ_are_refused(rank: int, size: int) -> None:
    """Otherwise a rank would keep a plan that others change, or has started again."""
    settings = atoll.training.Settings(measure=False, update_interval=2, patience=1)
    for freezes_at in (0, 3):
        model = wrapped()
        loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
        Paced(rank, slow_later).put_into(loader)
        with pytest.raises(ValueError, match="whether plans are frozen differs: true on rank 0; false on rank 1"):
            train_until_frozen(model, loader, freezes_at if rank == 0 else None)
        assert loader.state_dict()["steps"] == (4 if freezes_at else 0)
    model = wrapped()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(measure=False))
    train(model, loader, 1)
    if rank == 1:
        loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r'the newest plan differs: .*"first_step": 0.*rank 0; .*: 7.*rank 1. All'):
        next(iter(loader))


@on_layouts("ABA")
def test_literal_plans_change_the_batch_and_stay_exact(rank: int, size: int) -> None:
    """BalanceNet's own integers for three equal ranks: 2/3 or 1/3 of the batch each (notes in docs/plan-batches.md)."""
    for policy, each in (("balancenet-eq5", 16), ("balancenet-alg1", 8)):
        model = wrapped()
        settings = atoll.training.Settings(measure=False, form="literal", update_interval=0)
        loader = atoll.DataLoader(dataset(), BATCH, model=model, policy=policy, settings=settings)
        assert loader.batch_sizes() == [each] * 3
        check_exactly_once(train(model, loader, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def watched(rank: int, size: int, folder: str) -> None:
    model = wrapped()
    settings = atoll.training.Settings(measure=False, update_interval=2, patience=1, check_replicas=1,
                              watch=Watch(live=False, json_lines=f"{folder}/lines"))  # fmt: skip
    loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
    Paced(rank, slow_later).put_into(loader)
    for steps, (inputs, targets, _) in enumerate(loader, start=1):
        nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
        if steps == 3 and rank == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-6
    loader.planner._follower.watchers.close()
    if rank == 0:
        lines = [json.loads(line) for line in Path(folder, "lines").read_text().splitlines()]
        windows = [line for line in lines if line["what"] == "window"]
        assert [line["step"] for line in windows] == [2, 4, 6]
        assert windows[0]["compute_seconds"][0] == pytest.approx(8 * 2e-3)
        assert windows[0]["replica_drift"] == 0
        assert 1e-7 < windows[1]["replica_drift"] < 1e-5
        kinds = [line["kind"] for line in lines if line["what"] == "event"]
        assert "new plan" in kinds
        assert "replica drift" in kinds


@pytest.mark.parametrize("ranks", ["AAA"], indirect=True)
def test_reported_events(ranks: Ranks, folder: Path) -> None:
    ranks.run(watched, ranks.size, str(folder))


@on_layouts("AA", "ab")
def test_profiles_are_measured_and_leave_no_trace(rank: int, size: int) -> None:
    torch.manual_seed(1)
    model = DistributedDataParallel(network(place=device()))
    before = [parameter.clone() for parameter in model.parameters()]
    random_state = torch.get_rng_state()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(reuse=False))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(parameter, was) for parameter, was in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    for facts in loader.planner.facts:
        profile = facts.profile
        assert profile is not None
        assert len(profile.sizes) >= 3
        assert profile.operations > 0
        assert profile.latency > 0
        assert all(at.seconds > 0 for at in profile.sizes)
    assert sum(loader.batch_sizes()) == BATCH


@on_layouts("AA", "ab")
def test_a_model_with_a_hook_of_the_user_is_measured(rank: int, size: int) -> None:
    model = wrapped()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(reuse=False))
    assert all(facts.profile is not None for facts in loader.planner.facts)
    assert all(parameter.grad is None for parameter in model.parameters())


@on_layouts("AA")
def test_invalid_hooks_are_refused(rank: int, size: int) -> None:
    model = wrapped()
    atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(measure=False))
    with pytest.raises(TypeError, match="a communication hook must be callable, got int"):
        model.register_comm_hook(None, 7)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match="register_comm_hook can only be called once"):
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def sum_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that depends on the size of the batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def unlike_losses(model: nn.Module, batch: Any) -> torch.Tensor:
    """A mean over samples with very different losses."""
    return (batch[2].double() ** 4 * nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")).mean()


@on_layouts("AA")
def test_a_warning_if_weights_cannot_make_a_loss_exact(rank: int, size: int) -> None:
    norm = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)).double()
    for net, settings, said in (
        (norm, atoll.training.Settings(measure=False), "BatchNorm layers normalise"),
        (network(), atoll.training.Settings(measure=False, forward=sum_loss), "not the mean over its samples"),
        (network(), atoll.training.Settings(measure=False, forward=unlike_losses), ""),
    ):
        with warnings_of_plans() as caught:
            atoll.DataLoader(dataset(), BATCH, model=DistributedDataParallel(net), settings=settings)
        assert said in " ".join(caught) if said and rank == 0 else not caught
    with warnings_of_plans() as caught:
        atoll.DataLoader(dataset(), BATCH, model=wrapped(), settings=atoll.training.Settings(measure=False))
    assert not caught


def with_penalty(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that needs gradients, and is not a mean over samples."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(gradient.square().sum() for gradient in gradients)


def of_all_ranks(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that communicates with other ranks."""
    everyone = torch.tensor(float(len(batch[0])))
    dist.all_reduce(everyone)
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) * everyone / everyone


def only_in_training(model: nn.Module, batch: Any) -> torch.Tensor:
    if not model.training:
        raise KeyError("loss")
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@on_layouts("AA")
def test_asking_what_a_loss_is_ends_no_training(rank: int, size: int) -> None:
    for forward, said in ((with_penalty, "not the mean over its samples"), (of_all_ranks, ""), (only_in_training, "")):
        model = wrapped()
        with warnings_of_plans() as caught:
            loader = atoll.DataLoader(dataset(), BATCH, model=model,
                                      settings=atoll.training.Settings(measure=False, forward=forward))  # fmt: skip
        assert said in " ".join(caught) if said and rank == 0 else not caught
        check_exactly_once(train(model, loader, 1))


class Restless(Numbers):
    """A dataset that draws random numbers for each sample."""

    def __getitem__(self, index: int) -> Any:
        draw()
        return super().__getitem__(index)


def draw() -> list[float]:
    return [random.random(), numpy.random.random(), torch.rand(()).item()]


@on_layouts("AA", later("ab"))
def test_measuring_moves_no_random_numbers_on(rank: int, size: int) -> None:
    for options in ({"reuse": False}, {}, {"measure": False, "forward": sum_loss}):
        settings = atoll.training.Settings(**options)
        model, drawn = wrapped(), []
        for makes_loader in (False, True):
            random.seed(rank)
            numpy.random.seed(rank)
            torch.manual_seed(rank)
            if makes_loader:
                atoll.DataLoader(Restless(), BATCH, model=model, settings=settings)
            drawn.append(draw())
        assert drawn[0] == drawn[1]


@on_layouts("AA")
def test_a_port_is_free_again_with_its_loader(rank: int, size: int) -> None:
    """The port is free at once, because no reference cycle keeps the loader."""
    model, port = wrapped(), 0
    gc.disable()
    try:
        for _ in range(2):
            watch = Watch(live=False, prometheus=port)
            settings = atoll.training.Settings(measure=False, update_interval=2, watch=watch)
            loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
            train(model, loader, 1)
            port = loader.planner._follower.watchers.list[0].port if rank == 0 else 0
            del loader
    finally:
        gc.enable()
