# SPDX-License-Identifier: Apache-2.0
"""Trains real networks with atoll.DataLoader over a device and the CPU, and compares samples per second with the device
alone: DDP with a convolutional network, DDP and FSDP2 with a transformer, all with random weights. Shows the shares
that are chosen."""

import os
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import trying


@dataclass(frozen=True)
class Case:
    """`options` are those of the model (bench/models.py); the batch is that of all ranks, of which a CPU takes at most
    `of_cpu`: measuring it with half of the batch would take longer than everything else."""

    name: str
    kind: str
    model: str
    options: dict[str, int]
    batch: int
    of_cpu: int
    steps: int = 24
    warm_up: int = 6


TEXTS = {"width": 384, "layers": 6, "length": 128}
TINY = {"width": 16, "layers": 1, "length": 16}
CASES = (
    Case("MobileNetV2, DDP", "ddp", "mobilenet", {"stem_stride": 1}, 512, 64),
    Case("transformer, DDP", "ddp", "bytes", TEXTS, 256, 16),
    Case("transformer, FSDP2", "fsdp", "bytes", TEXTS, 256, 16),
)
QUICK = (
    Case("transformer, DDP", "ddp", "bytes", TINY, 16, 8, 4, 1),
    Case("transformer, FSDP2", "fsdp", "bytes", TINY, 16, 8, 4, 1),
)


def samples_of(case: Case) -> Any:
    """Returns four batches of images or texts, the same on all ranks."""
    import torch
    from torch.utils.data import TensorDataset

    import models

    chance = torch.Generator().manual_seed(3)
    count = 4 * case.batch
    if case.model == "bytes":
        text = torch.randint(models.BYTES, (count, case.options["length"] + 1), generator=chance)
        return TensorDataset(text[:, :-1], text[:, 1:])
    images = torch.randn(count, 3, 32, 32, generator=chance)
    return TensorDataset(images, torch.randint(models.CLASSES, (count,), generator=chance))


def wrapped(net: Any, kind: str, place: str, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if kind == "ddp":
        return DistributedDataParallel(net)
    mesh = init_device_mesh(place, (size,))
    for part in net.body:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train(rank: int, settings: dict[str, Any], threads: int) -> dict[str, Any]:
    """Returns the seconds and samples of this rank's steps, after those that warm up."""
    import torch
    import torch.distributed as dist

    import atoll
    import models
    from atoll.bench.devices import synchronize
    from support import device

    case, place = Case(**settings), device()
    torch.set_num_threads(threads if place == "cpu" else 1)
    net = models.make(case.model, 1, **case.options).to(place)
    model = wrapped(net, case.kind, place, dist.get_world_size())
    how = atoll.training.Settings(forward=models.loss_of, reuse=False, update_interval=case.warm_up)
    most = case.of_cpu if place == "cpu" else None
    loader = atoll.DataLoader(samples_of(case), case.batch, model=model, seed=1, max_batch=most, settings=how)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    times: list[float] = []
    last = time.perf_counter()
    while len(times) < case.steps:
        for inputs, targets in loader:
            loss = models.loss_of(model, [inputs.to(place), targets.to(place)])
            loss.backward()
            if loader.step_complete:
                optimizer.step()
                optimizer.zero_grad()
                synchronize(place)
                now = time.perf_counter()
                times.append(now - last)
                last = now
            if len(times) == case.steps:
                break
    newest = loader.planner.newest
    good = bool(torch.isfinite(loss.detach().cpu()))
    return {
        "seconds": times[case.warm_up :],
        "batches": list(newest.batches),
        "predicted": newest.seconds,
        "good": good,
    }


def run(trial: trying.Trial, case: Case, layout: str, threads: int) -> dict[str, Any]:
    ranks = trying.ranks_of(layout, trial.device)
    try:
        answers = ranks.run(train, asdict(case), threads)
    finally:
        ranks.stop()
    assert all(answer["good"] for answer in answers), "the loss is not finite"
    steps = [max(of_step) for of_step in zip(*(answer["seconds"] for answer in answers), strict=True)]
    seconds = statistics.median(steps)
    first = answers[0]
    return {"batches": first["batches"], "step_s": seconds, "predicted_s": first["predicted"],
            "samples_per_s": case.batch / seconds}  # fmt: skip


def compare(trial: trying.Trial, case: Case) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) - 2)
    alone, both = run(trial, case, "D", threads), run(trial, case, "D C", threads)
    gain = both["samples_per_s"] / alone["samples_per_s"]
    trial.add(
        f"{case.name}: {both['samples_per_s']:.0f} samples/s with shares {both['batches']} of {case.batch}, "
        f"{gain:.2f} times the {alone['samples_per_s']:.0f} of the device alone; a step was predicted at "
        f"{both['predicted_s'] * 1e3:.1f} ms and took {both['step_s'] * 1e3:.1f} ms",
        case=case.name, alone=alone, both=both, gain=gain, cpu_threads=threads,
    )  # fmt: skip


def main() -> None:
    trial, _ = trying.begin(__doc__)
    for case in QUICK if trial.quick else CASES:
        trial.check(case.name, lambda case=case: compare(trial, case))
    trial.end()


if __name__ == "__main__":
    main()
