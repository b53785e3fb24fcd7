# SPDX-License-Identifier: Apache-2.0
"""One rank of demo.py: it reports one JSON object per line of its standard output."""

import hashlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import atoll
import train_digits

BATCH = 128  # images per step of all ranks together
EQUAL_EPOCHS = 2  # enough to time a step
REPLAN_EVERY = 20  # steps
PROGRESS_EVERY = 5  # steps
Tell = Callable[..., None]


def main(backend: str, epochs: int) -> None:
    tell = teller()
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    device = atoll.device() if backend == "atoll" else torch.device("cpu")
    train_data, test_data = train_digits.load_data()
    if dist.get_rank() == 0:
        tell(note="Measuring the devices, and a few steps in equal shares ...")
    _, equal = train(device, train_data, "equal", EQUAL_EPOCHS, None)
    before = communication(backend)
    wall, compute = time.monotonic(), time.thread_time()
    model, balanced = train(device, train_data, "minmax", epochs, tell)
    wall, compute = time.monotonic() - wall, time.thread_time() - compute
    spent = {name: value - before[name] for name, value in communication(backend).items()}
    digest = hashlib.sha256()
    for parameter in model.module.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    tell(
        rank=dist.get_rank(), island=os.environ["ATOLL_ISLAND"], wall_s=wall, compute_s=compute, **spent,
        device=str(device), late=late_share(device.type), library=library_inside(backend), equal=equal,
        balanced=balanced, sha256=digest.hexdigest(), accuracy=train_digits.accuracy(model.module, test_data),
    )  # fmt: skip
    dist.destroy_process_group()


def teller() -> Tell:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not look like a report

    def tell(**facts: object) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    return tell


def train(
    device: torch.device, data: Any, policy: str, epochs: int, tell: Tell | None
) -> tuple[DistributedDataParallel, dict[str, Any]]:
    """Returns the trained model, and the time of a step in the shares of `policy`."""
    torch.manual_seed(train_digits.SEED + dist.get_rank())  # DDP starts from rank 0's network; dropout differs
    model = DistributedDataParallel(train_digits.make_network().to(device))
    settings = atoll.training.Settings(reuse=False, update_interval=REPLAN_EVERY)
    loader = atoll.DataLoader(data, BATCH, model=model, policy=policy, seed=train_digits.SEED, settings=settings)
    ends: list[float] = []

    def progress(step: int, steps: int, loss: float) -> None:
        ends.append(time.monotonic())
        if tell is not None and dist.get_rank() == 0 and (step % PROGRESS_EVERY == 0 or step == steps):
            tell(step=step, steps=steps, loss=loss)

    dist.barrier()
    train_digits.train(model, loader, loader.set_epoch, epochs, progress)
    plan = loader.planner.newest
    times = [end - begin for begin, end in itertools.pairwise(ends)]
    step = {"step_s": statistics.median(times[len(times) // 2 :]), "batches": plan.batches, "bound_s": plan.bound}
    return model, step


def late_share(device: str) -> float:
    """Returns the share of a simulated device's operations that ended later than modelled."""
    if device != "sim":
        return 0.0
    import atoll.sim

    counts = atoll.sim.punctuality()
    return counts["late"] / max(1, counts["tasks"])


def library_inside(backend: str) -> str:
    """Returns the library that reduces inside this rank's island."""
    if backend != "atoll":
        return backend
    return next(island.library for island in atoll.layout() if dist.get_rank() in island.ranks)


def communication(backend: str) -> dict[str, float]:
    """Returns the seconds in collectives so far, within the island and waiting for the other one, if the backend is
    Atoll; other backends do not measure them."""
    if backend != "atoll":
        return {}
    split = atoll.time_split()
    return {"inside_s": split["inside_s"], "bridge_s": split["bridge_s"]}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
