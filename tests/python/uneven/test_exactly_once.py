# SPDX-License-Identifier: Apache-2.0
"""Real trainings that stop, are killed, change their plans and go on with other ranks: each sample counts exactly
once per epoch, and the model is that of one process."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fault_jobs import Job, Me
from lives import BATCH, EPOCHS, SAMPLES, SEED, Life, Record, kept, make_loader, plans_of, random_lives
from support import later
from test_loader import EXACT, Numbers, train_alone
from training import check_close, network
from uneven_training import sgd

DEATH_S = 5.0


class Training:
    """This rank's model, optimizer and loader, restored from what an earlier life saved."""

    def __init__(self, me: Me, life: Life, folder: Path) -> None:
        self.net = network()
        model = DistributedDataParallel(self.net, bucket_cap_mb=0.001)
        self.model, self.update = model, sgd(self.net.parameters())
        self.loader = make_loader(life, me.rank, Numbers(SAMPLES), model)
        self._file, self._rank = folder / "state", me.rank
        if self._file.exists():
            state = torch.load(self._file)
            self.net.load_state_dict(state["net"])
            self.update.load_state_dict(state["update"])
            self.loader.load_state_dict(state["loader"])

    def save(self) -> None:
        """Saves the state on rank 0, whole or not at all."""
        if self._rank == 0:
            state = {"net": self.net.state_dict(), "update": self.update.state_dict(),
                     "loader": self.loader.state_dict()}  # fmt: skip
            torch.save(state, self._file.with_suffix(".part"))
            self._file.with_suffix(".part").replace(self._file)


def live(me: Me, life: Life, number: int, folder: Path) -> None:
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # has workers
    me.join()
    run = Training(me, life, folder)
    record = Record(folder, number, me.rank)
    done = 0

    def reach(point: str) -> None:
        if life.ends == "kill" and (me.rank, done, point) == (life.victim, life.after, life.point):
            me.tell("dies")
            os.kill(os.getpid(), signal.SIGKILL)

    while run.loader.epoch < EPOCHS:
        for inputs, targets, numbers in run.loader:
            record.take(run.loader, numbers.tolist())
            reach("before")
            loss = nn.functional.cross_entropy(run.model(inputs), targets)
            reach("forward")
            loss.backward()
            reach("backward")
            if not run.loader.step_complete:
                continue
            run.update.step()
            run.update.zero_grad()
            done += 1
            if run.loader.state_dict()["steps"] % life.save_every == 0:
                run.save()
            reach("step")
            if life.ends == "stop" and done == life.after:
                run.save()
                dist.barrier()
                return
    run.save()
    dist.barrier()


def saved(folder: Path) -> Any:
    return torch.load(folder / "state") if (folder / "state").exists() else None


def play(folder: Path, lives: list[Life]) -> list[int]:
    """Runs all lives, one after another. Returns the number of steps that were done when each started."""
    starts = []
    for number, life in enumerate(lives):
        state = saved(folder)
        starts.append(state["loader"]["steps"] if state else 0)
        own = folder / f"life{number}"
        own.mkdir()
        with Job(own, live, "ABAA"[: life.ranks], (life, number, folder)) as job:
            if life.ends == "kill":
                died = job.wait_for("dies", [life.victim])[life.victim].at
                job.errors([rank for rank in range(life.ranks) if rank != life.victim], died, DEATH_S)
            else:
                job.wait_for("end")
                job.check_ends()
    return starts


def check_schedule(folder: Path, seed: int) -> None:
    lives = random_lives(seed)
    for life in lives:
        print(life)
    starts = play(folder, lives)
    of_epochs = kept(folder, starts)
    assert sorted(of_epochs) == list(range(EPOCHS))
    for epoch, numbers in of_epochs.items():
        assert sorted(numbers) == list(range(SAMPLES)), f"epoch {epoch}"
    assert any(len(plans_of(folder, number, life.ranks)) > 1 for number, life in enumerate(lives)), "plans change"
    net = network()
    net.load_state_dict(saved(folder)["net"])
    check_close(net, train_alone(EPOCHS, SEED, SAMPLES, BATCH), EXACT)


# Proves E-2.
@pytest.mark.parametrize("seed", [1, later(2)])
def test_random_schedules(tmp_path: Path, seed: int) -> None:
    check_schedule(tmp_path, seed)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(100, 125))
def test_many_random_schedules(tmp_path: Path, seed: int) -> None:
    check_schedule(tmp_path, seed)
