# SPDX-License-Identifier: Apache-2.0
"""Whatever a rank does, the others make progress or get an error in time, and no process is left."""

import itertools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info

import atoll
from client_ranks import on_layouts
from fault_jobs import Job, Me, process_ends
from support import device, later
from test_loader import (
    BATCH,
    EXACT,
    SAMPLES,
    UNMEASURED,
    Numbers,
    check_exactly_once,
    dataset,
    train,
    train_alone,
    wrapped,
)
from training import check_close, network
from uneven_training import sgd, workers

SEED = 4
DEATH_S = 5.0
EMPTY = atoll.training.Settings(measure=False, least=0)


# Unequal counts.


@on_layouts("AAA", later("ABAA"), "ab")
def test_tiny_datasets_and_empty_shares(rank: int, size: int) -> None:
    """There are fewer samples than ranks, and ranks without any."""
    only_last = [0.0] * (size - 1) + [1.0]
    for samples, shares in itertools.product((1, 2, BATCH + 1), (None, only_last)):
        model = wrapped()
        policy = {"policy": "equal"} if shares is None else {"policy": "fixed", "shares": shares, "settings": EMPTY}
        loader = atoll.DataLoader(dataset(samples), BATCH, model=model, seed=SEED, **policy)
        assert len(loader) == -(-samples // BATCH)
        check_exactly_once(train(model, loader, 3), samples)
        check_close(model.module, train_alone(3, SEED, samples), EXACT)


@on_layouts(later("AAA"), "aCb")
def test_very_unequal_numbers_of_parts(rank: int, size: int) -> None:
    """One rank computes 20 batches in a step in which others compute one, or an empty one."""
    model = wrapped()
    loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="fixed", shares=[0, 20, 4], seed=SEED,
                              micro_batch=[None, 1, None][rank], settings=EMPTY)  # fmt: skip
    check_exactly_once(train(model, loader, 2))
    check_close(model.module, train_alone(2, SEED), EXACT)


# Ranks that are killed.


class Blocking(Numbers):
    """A dataset whose workers on one rank stop answering after some samples, as if a disk were gone."""

    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self._blocks, self._given = blocks, 0

    def __getitem__(self, index: int) -> Any:
        if self._blocks and get_worker_info() is not None:
            self._given += 1
            if self._given > 2 * BATCH // 3:
                threading.Event().wait()
        return super().__getitem__(index)


class Victim:
    """Kills this process when it reaches a point for the n-th time."""

    def __init__(self, me: Me, rank: int, point: str, times: int) -> None:
        self._me, self._is_me, self._point, self._left = me, me.rank == rank, point, times

    def reach(self, point: str) -> None:
        if not self._is_me or point != self._point:
            return
        self._left -= 1
        if self._left == 0:
            self._me.tell("dies", [child.pid for child in multiprocessing.active_children()])
            os.kill(os.getpid(), signal.SIGKILL)


def until_killed(me: Me, rank: int, point: str, times: int, number: int) -> None:
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # has workers
    me.join()
    victim = Victim(me, rank, point, times)

    def forward(model: nn.Module, batch: Any) -> torch.Tensor:
        victim.reach("measuring")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    settings = atoll.training.Settings(forward=forward, reuse=False, update_interval=2, measure=point == "measuring")
    loader = atoll.DataLoader(Blocking(me.rank == rank), BATCH, model=model, policy="minmax", settings=settings,
                              **workers(number))  # fmt: skip
    follower = loader.planner._follower
    exchanged = follower._exchanged

    def exchange(*seen: Any) -> Any:
        victim.reach("re-plan")
        return exchanged(*seen)

    follower._exchanged = exchange  # type: ignore[method-assign]
    update = sgd(model.parameters())
    while True:
        for inputs, targets, _ in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            victim.reach("step")
            loss.backward()
            update.step()
            if loader.state_dict()["steps"] == 2:
                me.tell("runs", [child.pid for child in multiprocessing.active_children()])
            victim.reach("between")


@pytest.mark.parametrize(
    ("layout", "rank", "point", "times", "number"),
    [("AAA", 0, "step", 4, 2), ("ABA", 2, "between", 4, 2), ("ABA", 1, "re-plan", 2, 0), ("AAA", 1, "measuring", 9, 0)],
)
def test_a_killed_rank(tmp_path: Path, layout: str, rank: int, point: str, times: int, number: int) -> None:
    with Job(tmp_path, until_killed, layout, (rank, point, times, number)) as job:
        others = [other for other in range(job.size) if other != rank]
        children = []
        if number:
            for event in job.wait_for("runs").values():
                children += event.details
            assert len(children) == number * job.size
        died = job.wait_for("dies", [rank])[rank].at
        for failure in job.failures(others, died, DEATH_S).values():
            assert failure.kind == "DistNetworkError"
            assert f"rank {rank}" in failure.text
        assert all(process_ends(child, DEATH_S) for child in children), "workers stay behind"


# A rank that becomes slow.


class Sleeping(nn.Module):
    """A model that takes `pace` seconds per sample, also in measurements."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.pace = network(), 1e-3

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pace * len(inputs))
        return self.net(inputs)


@on_layouts("AAA")
def test_a_hundred_times_slower(rank: int, size: int) -> None:
    batch, epochs = 60, 2
    net = Sleeping()
    model = DistributedDataParallel(net)
    settings = atoll.training.Settings(reuse=False, update_interval=2)
    loader = atoll.DataLoader(dataset(10 * batch), batch, model=model, seed=SEED, settings=settings)
    if rank == 0:
        net.pace *= 100
    check_exactly_once(train(model, loader, epochs), 10 * batch)
    assert loader.batch_sizes()[0] == 1
    assert len(loader.planner.history()) <= 4
    check_close(net.net, train_alone(epochs, SEED, 10 * batch, batch), EXACT)


# Ranks that leave the loop.


def fail_in_the_loop(me: Me) -> None:
    me.join()
    model = DistributedDataParallel(network())
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=UNMEASURED)
    for steps, (inputs, targets, _) in enumerate(loader):
        if me.rank == 1 and steps == 2:
            raise KeyError("a label that the user did not expect")
        nn.functional.cross_entropy(model(inputs), targets).backward()


def test_an_error_of_the_users_code(tmp_path: Path) -> None:
    with Job(tmp_path, fail_in_the_loop) as job:
        failed = job.wait_for("error", [1])[1]
        assert failed.details[0] == "KeyError"
        for failure in job.failures([0, 2], failed.at, DEATH_S).values():
            assert "rank 1" in failure.text


LIMIT_S = 6.0


def break_early(me: Me, then: str) -> None:
    me.join(LIMIT_S)
    model = DistributedDataParallel(network())
    loader = atoll.DataLoader(dataset(), BATCH, model=model, settings=UNMEASURED)
    for epoch in range(2):
        for steps, (inputs, targets, _) in enumerate(loader):
            if me.rank == 1 and epoch == 0 and steps == 2:
                me.tell("leaves")
                break
            nn.functional.cross_entropy(model(inputs), targets).backward()
        if me.rank == 1 and then == "waits":
            me.listen()
        loader.set_epoch(1)


@pytest.mark.parametrize("then", ["waits", "goes on"])
def test_one_rank_leaves_the_loop(tmp_path: Path, then: str) -> None:
    """It does nothing more, or starts the next epoch."""
    with Job(tmp_path, break_early, arguments=(then,)) as job:
        left = job.wait_for("leaves", [1])[1].at
        stuck = [0, 2] if then == "waits" else [0, 1, 2]
        for failure in job.errors(stuck, left, LIMIT_S + DEATH_S).values():
            assert "rank 1" in failure.text
            assert ("timed out" if then == "waits" else "met all_gather") in failure.text


@on_layouts("AAA")
def test_all_ranks_leave_the_loop(rank: int, size: int) -> None:
    """The next loop takes the rest of the epoch, or another one."""
    for number in (0, 2):
        model = wrapped()
        loader = atoll.DataLoader(Numbers(), BATCH, model=model, policy="fixed", shares=[3, 1, 2], micro_batch=4,
                                  settings=UNMEASURED, **workers(number))  # fmt: skip
        begun: list[int] = []
        for inputs, targets, numbers in loader:
            begun += numbers.tolist() if loader.weight else []
            nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
            if loader.step_complete and loader.state_dict()["steps"] == 3:
                break
        (rest,) = train(model, loader, 1)
        check_exactly_once([begun + rest])
        for _ in loader:
            if loader.step_complete:
                break
        loader.set_epoch(2)
        check_exactly_once(train(model, loader, 1))
        assert loader.epoch == 3


@on_layouts("AA")
def test_ranks_leave_the_loop_after_unlike_steps(rank: int, size: int) -> None:
    """Rank 1 leaves it in the middle of its first step."""
    loader = atoll.DataLoader(dataset(), BATCH, model=wrapped(), micro_batch=[None, 4][rank], settings=UNMEASURED)
    for _ in loader:
        break
    with pytest.raises(ValueError, match=r"position differs: 24 on rank 0; 0 on rank 1. .* after the same step"):
        next(iter(loader))


@on_layouts("AA")
def test_an_older_iteration_cannot_go_on(rank: int, size: int) -> None:
    """Otherwise it would take the samples of the newer one."""
    loader = atoll.DataLoader(dataset(), BATCH, model=wrapped(), settings=UNMEASURED)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    with pytest.raises(RuntimeError, match="a newer iteration"):
        next(older)
    assert len(list(newer)) == -(-SAMPLES // BATCH) - 2
