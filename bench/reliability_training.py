# SPDX-License-Identifier: Apache-2.0
"""One rank of a training that loses a rank, run by a launcher: reliability_training.py FOLDER WAY.

Each step takes the mean gradient of all ranks, which is one everywhere, from 25,000 weights: after n steps each is -n.
WAY: "shrink", with atoll.ElasticTrainer, or a backend, with a checkpoint after each step. Each rank records what it
does in a file of its own, a JSON object per line, with time.monotonic()."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

COUNT = 25_000
BATCH = 12
PAUSE_S = 0.02  # stands for the computation of a step
EPOCHS = 10_000


class Weights(nn.Module):
    """The gradient of their loss is the mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(COUNT))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weights


class Record:
    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"rank-{os.environ['LOCAL_RANK']}").open("a")

    def step(self, number: int, weights: torch.Tensor) -> None:
        is_right = bool(torch.allclose(weights, torch.tensor(float(-number))))
        facts = {"event": "step" if is_right else "wrong", "at": time.monotonic(), "pid": os.getpid(), "step": number,
                 "ranks": dist.get_world_size(), "text": f"weights are {weights[0]:g}"}  # fmt: skip
        print(json.dumps(facts), file=self._file, flush=True)
        time.sleep(PAUSE_S)


def shrink(record: Record) -> None:
    import atoll

    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(torch.ones(BATCH * 100, 1))
    trainer = atoll.ElasticTrainer(
        model, optimizer, lambda model: atoll.DataLoader(data, BATCH, model=model, policy="equal")
    )
    for step in trainer.steps(EPOCHS):
        with step as (inputs,):
            optimizer.zero_grad()
            trainer.model(inputs).mean(0).sum().backward()
            optimizer.step()
        if step.is_done:
            record.step(step.number + 1, model.weights.detach())


def from_checkpoints(record: Record, folder: Path, backend: str) -> None:
    if backend == "atoll":
        import atoll  # noqa: F401
    dist.init_process_group(backend)
    path = folder / "checkpoint"
    done, weights = torch.load(path) if path.exists() else (0, torch.zeros(COUNT))
    for number in steps_from(done):
        gradient = torch.ones(COUNT)
        dist.all_reduce(gradient)
        weights -= gradient / dist.get_world_size()
        if dist.get_rank() == 0:
            torch.save((number, weights), path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        record.step(number, weights)


def steps_from(done: int) -> Iterator[int]:
    while True:
        done += 1
        yield done


def main() -> None:
    torch.set_num_threads(1)
    folder, way = Path(sys.argv[1]), sys.argv[2]
    record = Record(folder)
    if way == "shrink":
        shrink(record)
    else:
        from_checkpoints(record, folder, way)


if __name__ == "__main__":
    main()
