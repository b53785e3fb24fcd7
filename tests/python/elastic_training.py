# SPDX-License-Identifier: Apache-2.0
"""One rank of a training under `atoll run` that suffers faults, and checks of its records afterwards.

elastic_training.py FOLDER EPOCHS FAULTS: FAULTS is JSON, a list of {"attempt": a, "step": s, "do": "kill" or "hold"}
with "rank" or "island" for some ranks only. Faults come after the step's backward pass."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import atoll

SAMPLES, BATCH, SEED, EVERY = 157, 16, 5, 3
STEPS = -(-SAMPLES // BATCH)
EXACT = 1e-10


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 5)).double()


def dataset() -> TensorDataset:
    chance = torch.Generator().manual_seed(11)
    inputs = torch.randn(SAMPLES, 12, generator=chance, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(5, (SAMPLES,), generator=chance), torch.arange(SAMPLES))


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.003, foreach=False)


def undisturbed(epochs: int) -> list[float]:
    """Returns the loss of each step, computed by one process without interruption."""
    net, data = network(), dataset()
    update, losses = adam(net), []
    for epoch in range(epochs):
        order = torch.as_tensor(atoll.plan.permutation(SAMPLES, SEED, epoch))
        for first in range(0, SAMPLES, BATCH):
            inputs, targets, _ = data[order[first : first + BATCH]]
            update.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), targets)
            loss.backward()
            update.step()
            losses.append(loss.item())
    return losses


class Record:
    """Records events. A line is in the file before the training continues, so that no line is lost if the process is
    killed."""

    def __init__(self, folder: Path) -> None:
        self.attempt, self.rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
        self._file = os.open(folder / f"{self.attempt}-{self.rank}.seen", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def line(self, **facts: Any) -> None:
        os.write(self._file, (json.dumps(facts) + "\n").encode())


def happen(faults: list[dict[str, Any]], **here: Any) -> None:
    for fault in faults:
        if all(fault.get(name, value) == value for name, value in here.items()):
            print(f"{fault['do']} at step {here['step']} of attempt {here['attempt']}", flush=True)
            if fault["do"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


def shares_of(attempt: int, model: DistributedDataParallel) -> dict[str, Any]:
    """Returns options of a loader: random shares, or measured shares with TEST_PACES, the seconds that a sample
    takes on each island."""
    watch = atoll.training.Watch(live=False)
    paces = json.loads(os.environ.get("TEST_PACES", "{}"))
    if paces:
        pace = paces[os.environ["ATOLL_ISLAND"]]
        model.module.register_forward_pre_hook(lambda _, inputs: time.sleep(pace * len(inputs[0])))
        return {"policy": "minmax", "settings": atoll.training.Settings(reuse=False, update_interval=0, watch=watch)}
    chance = random.Random(attempt)
    shares = [chance.uniform(1, 4) for _ in range(dist.get_world_size())]
    return {"policy": "fixed", "shares": shares, "settings": atoll.training.Settings(measure=False, watch=watch)}


def main() -> None:
    folder, epochs, faults = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    dist.init_process_group("atoll")
    record = Record(folder)
    model = DistributedDataParallel(network())
    optimizer = adam(model)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, seed=SEED, **shares_of(record.attempt, model))
    own = folder / "saved" / os.environ.get("OWN_FOLDER", "")
    checkpointer = atoll.Checkpointer(own, model=model, optimizer=optimizer, loader=loader, every=EVERY)
    record.line(start=checkpointer.resume(), ranks=dist.get_world_size(), shares=loader.batch_sizes())
    while loader.epoch < epochs:
        for inputs, targets, numbers in loader:
            step = checkpointer.steps + 1
            record.line(step=step, epoch=loader.epoch, numbers=numbers.tolist() if loader.weight else [])
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            island = os.environ.get("ATOLL_ISLAND", "")
            happen(faults, attempt=record.attempt, step=step, rank=record.rank, island=island)
            mean = loader.mean(loss).item()
            optimizer.step()
            optimizer.zero_grad()
            record.line(step=step, loss=mean)
            checkpointer.step()
    checkpointer.save()
    print(f"{checkpointer.steps} steps are done", flush=True)
    dist.destroy_process_group()


def check_history(folder: Path, epochs: int) -> dict[int, dict[str, Any]]:
    """Checks that every computed loss is that of the undisturbed training, and that each sample comes once per epoch
    in the steps that count. Returns the first line of each attempt."""
    expected = undisturbed(epochs)
    attempts: dict[int, list[dict[str, Any]]] = {}
    for file in folder.glob("*.seen"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        attempts.setdefault(int(file.name.partition("-")[0]), []).extend(lines)
    begins = {attempt: next(line for line in lines if "start" in line) for attempt, lines in sorted(attempts.items())}
    seen: dict[int, Counter[int]] = {}
    computed = set()
    for attempt, lines in attempts.items():
        last = min((begin["start"] for other, begin in begins.items() if other > attempt), default=len(expected))
        for line in lines:
            if "loss" in line:
                loss, right = line["loss"], expected[line["step"] - 1]
                assert abs(loss - right) <= EXACT * abs(right), f"step {line['step']} of attempt {attempt}"
                computed.add(line["step"])
            elif "numbers" in line and begins[attempt]["start"] < line["step"] <= last:
                seen.setdefault(line["epoch"], Counter()).update(line["numbers"])
    assert computed == set(range(1, len(expected) + 1))
    assert seen == {epoch: Counter(range(SAMPLES)) for epoch in range(epochs)}
    return begins


if __name__ == "__main__":
    main()
