# SPDX-License-Identifier: Apache-2.0
"""A training that loses ranks, as a program for `atoll run`, and the same training in one process.

Each rank records what it does in a file of its own in TEST_FOLDER, a JSON object per line; TEST_FAULTS lists the
faults of ranks."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from training import CLASSES, FEATURES, network

SAMPLES, BATCH, SEED = 70, 12, 5
WAIT_S = 60


class Samples(Dataset[Any]):
    """Samples with their indices."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        chance = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=chance, dtype=torch.float64), index % CLASSES, index


def make(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = network()
    if kind == "adam":
        return net, torch.optim.Adam(net.parameters(), lr=0.003, foreach=False)
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, foreach=False)


def order(epochs: int) -> Iterator[list[int]]:
    """Returns the samples of each step."""
    from atoll.loading.source import Order

    for epoch in range(epochs):
        indices = Order(SAMPLES, SEED).of_epoch(epoch).tolist()
        yield from (indices[first : first + BATCH] for first in range(0, SAMPLES, BATCH))


def alone(kind: str, epochs: int) -> tuple[list[float], nn.Module]:
    """Returns the loss of each step, and the model, of one undisturbed process."""
    net, optimizer = make(kind)
    samples, losses = Samples(), []
    for step in order(epochs):
        batch = [samples[index] for index in step]
        optimizer.zero_grad()
        inputs, targets = torch.stack([item[0] for item in batch]), torch.tensor([item[1] for item in batch])
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net


class Rank:
    """This process: the events that it records, and its faults."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["TEST_FOLDER"])
        self.rank = int(os.environ["LOCAL_RANK"])
        self.life = int(os.environ.get("ATOLL_MEMBER", "0.0").partition(".")[2])
        faults = json.loads(os.environ.get("TEST_FAULTS", "[]"))
        self.faults = [fault for fault in faults if (fault["rank"], fault.get("life", 0)) == (self.rank, self.life)]
        self.wraps = 0
        self.step = -1
        self.tear: Callable[[], Any] = lambda: None
        self.wait_for_newcomers: Callable[[], None] = lambda: None

    def note(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "rank": self.rank, "life": self.life, "step": self.step, **values})
        with (self.folder / f"rank{self.rank}.jsonl").open("a") as file:
            file.write(line + "\n")

    def note_list(self, number: int) -> None:
        """Records the rank that others see in Redis, and the number of members that are alive. Collective."""
        if not (url := os.environ["ATOLL_SUPERVISOR"]).startswith("redis"):
            return
        from atoll.redis.members import rows
        from atoll.redis.store import beside

        dist.barrier()
        if dist.get_rank() == 0:
            found = [[cells[0], cells[-1]] for _, _, cells in rows(beside(url, str(number)))]
            self.note("listed", group=number, rows=found)
        dist.barrier()

    def strike(self, phase: str) -> None:
        """Causes the faults of this phase, each in its step and at its number of groups."""
        for fault in list(self.faults):
            here = {"phase": phase, "step": self.step, "wrap": self.wraps}
            if all(fault.get(name, value) == value for name, value in here.items()):
                self.faults.remove(fault)
                self._suffer(fault)

    def _suffer(self, fault: dict[str, Any]) -> None:
        action = fault.get("action", "kill")
        self.note("suffers", action=action, phase=fault["phase"])
        self._wait_for(fault.get("after", []))
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "wait":
            self.wait_for_newcomers()
        elif action == "tear":
            self.tear()
            self.has_applied()
            raise dist.DistNetworkError("rank 99 was lost in the middle of the optimizer's step")
        elif action == "lose":
            raise dist.DistNetworkError("rank 99 was lost, as this rank alone believes")
        else:
            raise ValueError("an error of the program's own")

    def _wait_for(self, others: list[int]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not all((self.folder / f"applied-{self.step}-{rank}").exists() for rank in others):
            assert time.monotonic() < deadline, "the others never applied the step"
            time.sleep(0.005)

    def has_applied(self) -> None:
        (self.folder / f"applied-{self.step}-{self.rank}").touch()


def planning(net: nn.Module, rank: int) -> dict[str, Any]:
    """Returns options of a loader: equal shares, or measured shares with TEST_PACES, the seconds that a sample takes
    on each local rank."""
    import atoll

    paces = json.loads(os.environ.get("TEST_PACES", "[]"))
    if not paces:
        return {"policy": "equal", "settings": atoll.training.Settings(measure=False, update_interval=4)}
    net.register_forward_pre_hook(lambda _, inputs: time.sleep(paces[rank] * len(inputs[0])))
    return {"policy": "minmax", "settings": atoll.training.Settings(reuse=False, update_interval=0)}


def meet_with_faults(me: Rank) -> None:
    """Causes faults that come before this rank's group is made, and records the rank that others see in it."""
    from atoll.recovering import world
    from atoll.recovering.notices import Roster

    joined, meet = 0, world.join

    def join(store: dist.Store, roster: Roster, *arguments: Any) -> None:
        nonlocal joined
        joined += 1
        me.strike(f"meeting {joined}")
        meet(store, roster, *arguments)
        me.note_list(roster.number)

    world.join = join


def main() -> None:
    import atoll
    from atoll.recovering import member, world
    from atoll.recovering.notices import growth_key

    torch.set_num_threads(1)
    epochs, kind = int(os.environ.get("TEST_EPOCHS", "2")), os.environ.get("TEST_OPTIMIZER", "sgd")
    world._MEETING = timedelta(seconds=float(os.environ.get("TEST_MEETING", "30")))
    member._LOOK_S = 0.0  # newcomers are noticed at once
    me = Rank()
    net, optimizer = make(kind)
    options = planning(net, me.rank)

    def loader(model: nn.Module) -> atoll.DataLoader:
        me.wraps += 1
        me.strike("wrap")
        made = atoll.DataLoader(Samples(), BATCH, model=model, seed=SEED, **options)
        me.note("plan", wrap=me.wraps, batches=made.batch_sizes())
        return made

    meet_with_faults(me)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # a power of 2, which rounds nothing
    extra = {"scaler": scaler}
    trainer = atoll.ElasticTrainer(net, optimizer, loader, extra=extra, timeout=timedelta(seconds=40))

    def wait_for_newcomers() -> None:
        assert trainer._member is not None
        if len(trainer.members) < int(os.environ["LOCAL_WORLD_SIZE"]):
            trainer._member.store.wait([growth_key(trainer.group)], timedelta(seconds=WAIT_S))

    me.wait_for_newcomers = wait_for_newcomers
    me.tear = lambda: next(net.parameters()).data.add_(1)
    next(net.parameters()).register_hook(lambda gradient: me.strike("backward"))
    optimizer.register_step_pre_hook(lambda *_: me.strike("optimizer"))
    for step in trainer.steps(epochs):
        me.step = step.number
        with step as (inputs, targets, indices):
            me.strike("forward")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trainer.model(inputs), targets)
            # Before others can have applied them: a rank may be the only one that does not learn that they have.
            me.note("computed", group=trainer.group, indices=indices.tolist() if step.weight else [])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            mean = step.mean(loss).item()
            me.strike("reduced")
            scaler.step(optimizer)
            scaler.update()
            me.has_applied()
        if step.is_done:
            me.note("done", group=trainer.group, members=trainer.members, loss=mean)
        me.strike("between")
    me.step = -1
    me.strike("after")
    me.note("end", members=trainer.members)
    torch.save(net.state_dict(), me.folder / f"net{me.rank}.pt")


if __name__ == "__main__":
    main()
