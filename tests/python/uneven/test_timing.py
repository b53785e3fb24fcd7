# SPDX-License-Identifier: Apache-2.0
"""The parts of a step's time: computing, waiting for data, and exposed communication."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.loading.timing import StepTimes, Summary
from client_ranks import on_layouts
from support import device
from test_loader import BATCH, dataset
from training import CLASSES, FEATURES, network


class Mark:
    """A device's event: reached when `now` is."""

    now = 0.0

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return Mark.now >= self.at

    def elapsed_time(self, later: "Mark") -> float:
        return 1e3 * (later.at - self.at)


def test_steps_that_a_device_has_not_done_come_with_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = StepTimes(torch.device("cpu"), inside=iter([0.0, 0.3, 0.3, 0.4, 0.4]).__next__)
    at = iter([0.0, 1.0, 1.5, 2.0, 4.0, 7.0])
    monkeypatch.setattr(times, "_now", lambda: Mark(next(at)))
    for _ in range(2):
        times.begin()
        times.ready()
        times.reduced()
        times.end()
    monkeypatch.setattr(Mark, "now", 3.0)
    first = times.take()
    assert (first.compute, first.exposed, first.inside) == (1.0, 0.5, pytest.approx(0.15))
    monkeypatch.setattr(Mark, "now", 8.0)
    times.end()
    second = times.take()
    assert (second.compute, second.exposed, second.inside) == (2.0, 3.0, pytest.approx(0.1))


def test_steps_that_did_not_start_or_are_not_ready_are_not_measured() -> None:
    times = StepTimes(torch.device("cpu"))
    times.ready()
    times.reduced()
    times.begin()
    times.reduced()
    times.forget()
    taken = times.take()
    assert (taken.compute, taken.exposed, taken.wall) == (0, None, 0)


def test_the_last_gradient_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = StepTimes(torch.device("cpu"))
    at = iter([0.0, 1.0, 3.0, 4.0, 10.0, 12.0])
    monkeypatch.setattr(times, "_now", lambda: next(at))
    times.begin()
    times.ready()
    times.ready()
    times.reduced()
    times.reduced()
    times.ready()
    times.end()
    taken = times.take()
    assert (taken.compute, taken.exposed) == (3.0, 1.0)
    times.begin()
    times.ready()
    assert times.take().compute == 2.0, "also of a step that has not ended"


def summary(model: nn.Module, late: bool) -> Summary:
    """Returns the times of some steps in which this rank may compute for long before its backward pass."""
    settings = atoll.training.Settings(measure=False, update_interval=0)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=settings, drop_last=True)
    work = torch.ones(600, 600)
    for inputs, targets, _ in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device()))
        for _ in range(8 if late else 0):
            work = (work @ work).clamp(-1, 1)
        loss.backward()
    return loader.planner._times.take()


def plain() -> DistributedDataParallel:
    return DistributedDataParallel(network(place=device()), bucket_cap_mb=0.001)


def with_hook_before() -> nn.Module:
    """Registers a hook, which cannot be wrapped, before the loader is made."""
    model = plain()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def with_hook_after() -> nn.Module:
    model = plain()
    atoll.DataLoader(dataset(), BATCH, model=model, settings=atoll.training.Settings(measure=False))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


@on_layouts("AA", "ab")
def test_waiting_for_others_is_not_computing(rank: int, size: int) -> None:
    """Rank 1 is late in each step, so rank 0 waits: that time is exposed on rank 0, and hardly any on rank 1."""
    for make in (plain, with_hook_before, with_hook_after):
        taken = summary(make(), late=rank == 1)
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, taken)
        waits, late = everyone
        assert late.compute > 2 * waits.compute, (make, everyone)
        assert waits.exposed > 2 * late.exposed > 0, (make, everyone)
        for each in everyone:
            assert each.compute + each.input + each.exposed < 1.5 * each.wall, (make, everyone)
            assert each.inside >= 0


@on_layouts("AA")
def test_exposed_time_of_a_sharded_model_is_not_known(rank: int, size: int) -> None:
    model = network()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,)))
    assert summary(model, late=False).exposed is None


class _Slow(torch.autograd.Function):
    """Advances a test's clock by 1 s in the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, clock: list[float]) -> torch.Tensor:
        ctx.clock = clock
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.clock[0] += 1
        return gradients[0], None


class _SlowBackward(nn.Module):
    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        slowed: torch.Tensor = _Slow.apply(inputs, self._clock)
        return slowed


@on_layouts("AA")
def test_a_sharded_model_computes_until_its_last_gradient(rank: int, size: int) -> None:
    """Each layer is reduced separately, the last one first."""
    clock = [0.0]
    model = nn.Sequential(nn.Linear(FEATURES, 9), _SlowBackward(clock), nn.Linear(9, CLASSES)).double()
    mesh = dist.init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    settings = atoll.training.Settings(measure=False, update_interval=0)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=settings)
    loader.planner._times._now = lambda: clock[0]  # type: ignore[method-assign]
    for inputs, targets, _ in loader:
        nn.functional.cross_entropy(model(inputs), targets).backward()
    assert loader.planner._times.take().compute == 1.0
