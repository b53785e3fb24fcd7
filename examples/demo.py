# SPDX-License-Identifier: Apache-2.0
"""Trains train_digits.py's network over two unlike islands of this machine: two ranks on CPUs, and two on a simulated
accelerator that has memory and a collective library of its own and is slower.

Shows progress, then where each rank's time went, whether all ranks hold identical parameters, and the accuracy on
digits that training never saw. Ends with 1 if anything is not as it must be."""

import argparse
import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # PyTorch would warn that it cannot time the simulated device
CPU = {"ATOLL_ISLAND": "cpu", "ATOLL_DEVICE": "cpu"}
# 40 Gflop/s, and copies as over a narrow PCIe link.
SIM = {"ATOLL_ISLAND": "sim", "ATOLL_DEVICE": "sim", "ATOLL_SIM_SPEED": "4", "ATOLL_SIM_BANDWIDTH": "4G"}
RANKS = (CPU, SIM, CPU, SIM)
EPOCHS, BATCH = 15, 32
LEAST_ACCURACY = 0.97
PROGRESS_EVERY = 5  # steps
GRACE_SECONDS = 10.0


def work(backend: str, epochs: int) -> None:
    """One rank: what it tells is one JSON object per line."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import atoll
    import train_digits

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not look like an answer

    def tell(**facts: object) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    torch.manual_seed(train_digits.SEED + dist.get_rank())
    train_data, test_data = train_digits.load_data()
    device = atoll.device() if backend == "atoll" else torch.device("cpu")
    model = DistributedDataParallel(train_digits.make_network().to(device))

    def progress(step: int, steps: int, loss: float) -> None:
        if dist.get_rank() == 0 and (step % PROGRESS_EVERY == 0 or step == steps):
            tell(step=step, steps=steps, loss=loss)

    dist.barrier()
    before = communication(backend)
    wall, compute = time.monotonic(), time.thread_time()
    train_digits.train(model, train_data, epochs, BATCH, progress)
    wall, compute = time.monotonic() - wall, time.thread_time() - compute
    spent = {name: value - before[name] for name, value in communication(backend).items()}
    digest = hashlib.sha256()
    for parameter in model.module.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    tell(
        rank=dist.get_rank(), island=os.environ["ATOLL_ISLAND"], wall_s=wall, compute_s=compute, **spent,
        device=str(device), late=late_share(device.type), library=library_inside(backend),
        sha256=digest.hexdigest(), accuracy=train_digits.accuracy(model.module, test_data),
    )  # fmt: skip
    dist.destroy_process_group()


def late_share(device: str) -> float:
    """Of a simulated device: the share of its operations that ended later than modelled."""
    if device != "sim":
        return 0.0
    import atoll.sim

    counts = atoll.sim.punctuality()
    return counts["late"] / max(1, counts["tasks"])


def library_inside(backend: str) -> str:
    """What reduces inside this rank's island."""
    if backend != "atoll":
        return backend
    import torch.distributed as dist

    import atoll

    return next(island.library for island in atoll.layout() if dist.get_rank() in island.ranks)


def communication(backend: str) -> dict[str, float]:
    """Seconds in collectives so far, within the island and waiting for the other one; other backends do not tell."""
    if backend != "atoll":
        return {}
    import atoll

    split = atoll.time_split()
    return {"inside_s": split["inside_s"], "bridge_s": split["bridge_s"]}


class Progress:
    """A bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = None
        self._next = 0.0
        if sys.stdout.isatty():
            columns = (TextColumn("training"), BarColumn(), TextColumn("step {task.completed} of {task.total}"))
            self._bar = Progress(*columns, TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn())
            self._task = self._bar.add_task("training", total=None, loss="-")
            self._bar.start()

    def show(self, step: int, steps: int, loss: float) -> None:
        if self._bar:
            self._bar.update(self._task, completed=step, total=steps, loss=f"{loss:.4f}")
        elif step >= self._next * steps or step == steps:
            print(f"step {step} of {steps}: loss {loss:.4f}", flush=True)
            self._next = step / steps + 0.1

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


@dataclass
class Outcome:
    ranks: list[dict[str, Any]]  # what each rank told at its end, in rank order
    failures: list[str]


def run(backend: str, epochs: int) -> Outcome:
    """Starts the ranks, shows their progress and gathers what they tell."""
    from torch.distributed import TCPStore

    from atoll.bench.launch import rank_environment

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    processes = []
    for rank, settings in enumerate(RANKS):
        environment = rank_environment(rank, len(RANKS), "127.0.0.1", store.port) | settings
        command = [sys.executable, __file__, "--as-rank", "--backend", backend, "--epochs", str(epochs)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        return follow(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def follow(processes: "list[subprocess.Popen[str]]") -> Outcome:
    """Reads what all ranks tell until they have ended; after a failure the others get GRACE_SECONDS to do so."""
    lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def read(rank: int) -> None:
        for line in processes[rank].stdout or ():
            lines.put((rank, line))
        lines.put((rank, ""))

    for rank in range(len(processes)):
        threading.Thread(target=read, args=(rank,), daemon=True).start()
    outcome = Outcome([], [])
    running = set(range(len(processes)))
    deadline: float | None = None
    with contextlib.closing(Progress()) as progress:
        while running:
            try:
                rank, line = lines.get(timeout=deadline and max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                outcome.failures.append(f"ranks {sorted(running)} had to be stopped after that")
                break
            if line and "step" in (facts := json.loads(line)):
                progress.show(**facts)
            elif line:
                outcome.ranks.append(facts)
            else:
                running.remove(rank)
                if status := processes[rank].wait():
                    outcome.failures.append(f"rank {rank} ended with status {status}")
                    deadline = deadline or time.monotonic() + GRACE_SECONDS
    outcome.ranks.sort(key=lambda facts: facts["rank"])
    return outcome


def judge(outcome: Outcome, backend: str, least_accuracy: float) -> list[str]:
    """What is not as it must be."""
    failures = list(outcome.failures)
    ranks = outcome.ranks
    if len(ranks) != len(RANKS):
        return [*failures, f"{len(ranks)} of {len(RANKS)} ranks finished"]
    if len({rank["sha256"] for rank in ranks}) != 1:
        failures.append("the ranks hold different parameters")
    worst = min(rank["accuracy"] for rank in ranks)
    if worst < least_accuracy:
        failures.append(f"the accuracy is {worst:.1%}, below {least_accuracy:.0%}")
    if backend == "atoll" and any(rank["bridge_s"] <= 0 for rank in ranks if rank["island"] == "sim"):
        failures.append("nothing crossed the bridge")
    return failures


def show(outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    if not outcome.ranks:
        return
    table = Table(title="Seconds by rank", title_justify="left")
    for name in ("rank", "island", "device", "library", "wall", "compute", "inside", "bridge"):
        table.add_column(name, justify="right")
    for facts in outcome.ranks:
        seconds = [facts.get(name) for name in ("wall_s", "compute_s", "inside_s", "bridge_s")]
        cells = ["-" if value is None else f"{value:.2f}" for value in seconds]
        table.add_row(str(facts["rank"]), facts["island"], facts["device"], facts["library"], *cells)
    console.print(table)
    print(
        "compute: processor time of the training thread; inside, bridge: collectives within the island, and waiting "
        "for\nthe other one. Collectives run beside the backward pass, so that the parts may exceed the wall time.\n"
        "The simulated device computes on this machine's processor and takes the time of a slower device."
    )
    late = max(facts["late"] for facts in outcome.ranks)
    if late > 0.05:
        print(
            f"Oversubscribed: {late:.0%} of its operations ended later than modelled, because this machine is too busy."
        )
    print("\nParameters, SHA-256 of all bytes:")
    for facts in outcome.ranks:
        print(f"  rank {facts['rank']}: {facts['sha256']}")
    print(f"\nAccuracy on the held-out fifth: {outcome.ranks[0]['accuracy']:.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="atoll")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--least-accuracy", type=float, default=LEAST_ACCURACY)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        work(arguments.backend, arguments.epochs)
        return 0
    begin = time.monotonic()
    islands = ", ".join(settings["ATOLL_ISLAND"] for settings in RANKS)
    print(f"Training a convolutional network on handwritten digits; islands by rank: {islands}", flush=True)
    outcome = run(arguments.backend, arguments.epochs)
    show(outcome)
    failures = judge(outcome, arguments.backend, arguments.least_accuracy)
    if failures:
        print(f"\nAtoll: DEMO FAILED: {'; '.join(failures)}", flush=True)
        return 1
    seconds = time.monotonic() - begin
    good = f"{outcome.ranks[0]['accuracy']:.1%} accuracy, identical parameters on all ranks"
    print(f"\nAtoll: demo passed: {good}, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
