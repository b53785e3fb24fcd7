# SPDX-License-Identifier: Apache-2.0
"""Ranks with different speed and memory: both are measured, plans fit into memory, and no rank runs out of it."""

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import atoll
from atoll.profiling.device import one_step
from atoll.profiling.device_memory import fits
from atoll.profiling.forward import default_forward
from support import Ranks, device, raises, warnings_of_plans
from training import check_close
from uneven_training import sgd

BATCH, SAMPLES, TIMES, FEATURES, WIDTH = 48, 160, 32, 16, 64
EXACT = 1e-12
MAX_BATCH = 7
FAST_AND_SMALL = {"ATOLL_SIM_MEMORY": "2500K", "ATOLL_SIM_SPEED": "0.1"}
SLOW_AND_LARGE = {"ATOLL_SIM_MEMORY": "100M", "ATOLL_SIM_SPEED": "0.025"}
TRIES = 4


@pytest.fixture(scope="module")
def unlike() -> Iterator[Ranks]:
    """The third rank computes on the CPU."""
    ranks = Ranks(3, ["a", "b", "C"], devices=["sim", "sim", "cpu"], own=[FAST_AND_SMALL, SLOW_AND_LARGE, {}])
    yield ranks
    ranks.stop()


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    norms = [nn.BatchNorm1d(TIMES)] if norm else []
    layers = [nn.Linear(FEATURES, WIDTH), nn.Tanh(), *norms, nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(TIMES * WIDTH, 3)).double()


def dataset() -> TensorDataset:
    chance = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, TIMES, FEATURES, generator=chance, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(3, (SAMPLES,), generator=chance))


def wrapped() -> DistributedDataParallel:
    gc.collect()  # models of earlier tests hold memory
    return DistributedDataParallel(network().to(device()))


def loader_of(rank: int, model: nn.Module, **options: Any) -> atoll.DataLoader:
    limits = {"max_batch": MAX_BATCH} if rank == 2 and "micro_batch" not in options else {}
    return atoll.DataLoader(dataset(), BATCH, model=model, **{**limits, **options})


def train(model: nn.Module, loader: atoll.DataLoader) -> None:
    update = sgd(model.parameters())
    for inputs, targets in loader:
        nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
        if loader.step_complete:
            update.step()
            update.zero_grad()


def alone() -> nn.Module:
    model, data = network(), dataset()
    update = sgd(model.parameters())
    order = atoll.plan.permutation(SAMPLES, 0, 0)
    for first in range(0, SAMPLES, BATCH):
        inputs, targets = data[order[first : first + BATCH]]
        update.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        update.step()
    return model


def a_step_fits(model: nn.Module, samples: int) -> bool:
    place = next(model.parameters()).device

    def step() -> None:
        one_step(model, torch.zeros(samples, TIMES, FEATURES, dtype=torch.float64, device=place), default_forward)
        torch.sim.synchronize()

    found = fits(step, place)
    model.zero_grad()
    return found


def shortest_step(costs: list[Any], caps: list[int | None]) -> float:
    """Returns the shortest step of all divisions of the batch within the caps."""
    most = [min(cap or BATCH, BATCH) for cap in caps]
    return min(
        max(cost.seconds(share) for cost, share in zip(costs, (a, b, BATCH - a - b), strict=True))
        for a, b in itertools.product(range(1, most[0] + 1), range(1, most[1] + 1))
        if 1 <= BATCH - a - b <= most[2]
    )


def plan_under_caps(rank: int) -> None:
    model = wrapped()
    planner = loader_of(rank, model).planner
    caps = [facts.cap() for facts in planner.facts]
    assert caps[0] is not None
    assert caps[1:] == [None, MAX_BATCH], "a cap that is larger than the batch is none"
    if rank == 0:
        largest = next(size for size in itertools.count(1) if not a_step_fits(model.module, size + 1))
        assert 0.6 * largest <= caps[0] <= largest, "what is left free is for the margin and the optimizer"
    shares = planner.newest.batches
    assert (shares[0], shares[2]) == (caps[0], MAX_BATCH), "these two would be faster with more"
    best = shortest_step([facts.cost() for facts in planner.facts], caps)
    assert planner.newest.seconds == pytest.approx(best, rel=1e-9)


def test_the_plan_is_the_best_that_fits(unlike: Ranks) -> None:
    unlike.run(plan_under_caps)


def train_within_memory(rank: int) -> None:
    model = wrapped()
    loader = loader_of(rank, model)
    train(model, loader)
    check_close(model.module, alone(), EXACT)
    if rank == 0:
        assert not a_step_fits(model.module, BATCH)


def test_training_does_not_run_out_of_memory(unlike: Ranks) -> None:
    unlike.run(train_within_memory)


def too_little_room(rank: int) -> None:
    model = wrapped()
    limits = {"max_batch": 3} if rank == 1 else {}
    with raises(ValueError, "samples of a step, but the global batch is 48", " (memory)", "rank 1 (sim:0) 3 (max_",
                "rank 2 (cpu) 7 (max_batch)", "micro_batch"):  # fmt: skip
        loader_of(rank, model, **limits)
    train(model, loader_of(rank, model, micro_batch=4))
    check_close(model.module, alone(), EXACT)


def test_where_the_batch_does_not_fit_the_error_says_so(unlike: Ranks) -> None:
    unlike.run(too_little_room)


def too_large_passes(rank: int) -> None:
    model = wrapped()
    with warnings_of_plans() as said:
        loader = loader_of(rank, model, micro_batch=BATCH if rank == 0 else 5)
    first = loader.planner.facts[0]
    held = first.held()
    assert held is not None
    assert first.largest_pass() == held < BATCH
    assert first.cap() is None
    assert any("micro_batch=48 does not fit" in text for text in said) == (rank == 0)
    train(model, loader)
    check_close(model.module, alone(), EXACT)


def test_parts_are_made_small_enough(unlike: Ranks) -> None:
    unlike.run(too_large_passes)


def fill() -> list[torch.Tensor]:
    """Takes all memory but a little."""
    blocks: list[torch.Tensor] = []
    sim = torch.device("sim", 0)
    while fits(lambda: blocks.append(torch.empty(1 << 14, dtype=torch.uint8, device=sim)), sim):
        pass
    return blocks[4:]


def cap_found(rank: int, model: nn.Module, **options: Any) -> int | None:
    """Returns the cap, after a garbage collection that releases the device's memory."""
    gc.collect()
    return loader_of(rank, model, **options).planner.facts[0].cap()


def less_memory_than_last_time(rank: int) -> None:
    """A profile of an earlier run is used, and the cap is determined again."""
    model = wrapped()
    before = cap_found(rank, model)
    filled = torch.empty(1 << 20 if rank == 0 else 1, dtype=torch.uint8, device=device())
    between = cap_found(rank, model, policy="kaitian", micro_batch=None if rank != 2 else 5)
    assert between is not None
    assert before is not None
    assert between < 0.7 * before
    del filled
    assert cap_found(rank, model) == before
    blocks = fill() if rank == 0 else []
    with raises(ValueError, "rank 0: one sample's step does not fit into the memory of sim:0", "optimizer_bytes"):
        loader_of(rank, model)
    del blocks


def test_free_memory_is_measured_each_time(unlike: Ranks) -> None:
    unlike.run(less_memory_than_last_time)


def normalised(rank: int) -> None:
    """Ranks try different numbers of steps, so none of them may need the others."""
    gc.collect()
    model = DistributedDataParallel(atoll.training.convert_batch_norm(network(norm=True)).to(device()))
    before = [buffer.clone() for buffer in model.buffers()]
    loader = loader_of(rank, model)
    assert all(torch.equal(buffer, was) for buffer, was in zip(model.buffers(), before, strict=True))
    assert loader.planner.facts[0].cap() is not None
    train(model, loader)
    assert all(not torch.equal(buffer, was) for buffer, was in zip(model.buffers(), before, strict=True))


def test_synchronised_norms_are_measured_alone(unlike: Ranks) -> None:
    unlike.run(normalised)


def speeds(rank: int) -> tuple[bool, Any]:
    """Returns the measured speeds, and whether the machine kept up with the simulated device's times."""
    before = atoll.sim.punctuality() if rank < 2 else {"late": 0, "tasks": 0}
    loader = loader_of(rank, wrapped(), settings=atoll.training.Settings(reuse=False))
    after = atoll.sim.punctuality() if rank < 2 else before
    late = 20 * (after["late"] - before["late"]) > after["tasks"] - before["tasks"]
    return late, loader.planner.facts[rank].profile


def check_speeds(fast: Any, slow: Any) -> None:
    seconds = {at.batch: at.seconds for at in fast.sizes}
    alike = [at.seconds / seconds[at.batch] for at in slow.sizes if at.batch in seconds]
    assert len(alike) >= 3
    assert alike == pytest.approx([4.0] * len(alike), rel=0.15)
    assert fast.operations / slow.operations == pytest.approx(4.0, rel=0.25)
    assert fast.too_large > max(seconds)


def test_speeds_are_measured(unlike: Ranks) -> None:
    """Succeeds in one of a few tries: if other work of this machine disturbed the steps of one size while most
    operators were in time, only the ratio shows it."""
    wrong: AssertionError | None = None
    for _ in range(TRIES):
        found = unlike.run(speeds)
        if any(late for late, _ in found):
            continue
        fast, slow, cpu = (profile for _, profile in found)
        try:
            check_speeds(fast, slow)
        except AssertionError as error:
            wrong = error
            continue
        for profile in (fast, slow, cpu):
            assert profile.memory_used >= sum(parameter.nbytes for parameter in network().parameters())
            assert profile.latency > 0
        assert slow.too_large == cpu.too_large == 0
        return
    if wrong:
        raise wrong
    pytest.skip("this machine is too busy for the modelled times of simulated devices")


def watts(rank: int) -> None:
    """The power of a simulated device cannot be measured."""
    settings = atoll.training.Settings(watts=(300.0 + rank, 60.0))
    planner = loader_of(rank, wrapped(), policy="energy", settings=settings).planner
    for other, facts in enumerate(planner.facts):
        told = facts.as_planned(1, 1)
        assert (told["busy_watts"], told["idle_watts"]) == (300.0 + other, 60.0)
    with raises(ValueError, "nothing measures that of rank 0 (sim:0): pass Settings(watts="):
        loader_of(rank, wrapped(), policy="energy")


def test_stated_watts_are_taken(unlike: Ranks) -> None:
    unlike.run(watts)
