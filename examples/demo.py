# SPDX-License-Identifier: Apache-2.0
"""Trains train_digits.py's network over two unlike islands of this machine: two ranks on CPUs, and two on a simulated
accelerator, which is slower and has its own memory and collective library.

First it does a few steps in equal shares, then the whole training in shares with which all ranks finish together. It
shows progress, then the time of a step in both cases and its bound, the time that each rank spent computing and
communicating, whether all ranks hold identical parameters, and the accuracy on digits that training never saw. It ends
with 1 if anything is wrong."""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # PyTorch would warn that it cannot time the simulated device
CPU = {"ATOLL_ISLAND": "cpu", "ATOLL_DEVICE": "cpu"}
# A device of 10 Gflop/s, with copies as slow as over a narrow PCIe link.
SIM = {"ATOLL_ISLAND": "sim", "ATOLL_DEVICE": "sim", "ATOLL_SIM_SPEED": "1", "ATOLL_SIM_BANDWIDTH": "4G"}
RANKS = (CPU, SIM, CPU, SIM)
RANK_PROGRAM = Path(__file__).with_name("demo_rank.py")
EPOCHS = 15
LEAST_ACCURACY = 0.97
GRACE_SECONDS = 10.0


class Progress:
    """Shows a bar on a terminal, otherwise a line now and then."""

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
    ranks: list[dict[str, Any]]  # the facts that each rank reported at its end, in rank order
    failures: list[str]


def run(backend: str, epochs: int) -> Outcome:
    """Starts the ranks, shows their progress and gathers their reports."""
    from torch.distributed import TCPStore

    from atoll.bench.launch import rank_environment

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    processes = []
    for rank, settings in enumerate(RANKS):
        environment = rank_environment(rank, len(RANKS), "127.0.0.1", store.port) | settings
        command = [sys.executable, RANK_PROGRAM, backend, str(epochs)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        return follow(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def follow(processes: "list[subprocess.Popen[str]]") -> Outcome:
    """Reads the reports of all ranks until they have ended; after a failure the others get GRACE_SECONDS to end."""
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
            if line and "note" in (facts := json.loads(line)):
                print(facts["note"], flush=True)
            elif line and "step" in facts:
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
    """Returns what is wrong."""
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


def steps_table(facts: dict[str, Any]) -> "Table":
    """Returns a table with the time of a step in equal and in balanced shares, and its bound."""
    from rich.table import Table

    equal, balanced = facts["equal"], facts["balanced"]
    table = Table(title=f"One step of {sum(balanced['batches'])} images", title_justify="left")
    for name in ("shares", "images by rank", "step"):
        table.add_column(name, justify="right")
    for name, step in (("equal", equal), ("balanced", balanced)):
        table.add_row(name, ", ".join(map(str, step["batches"])), f"{step['step_s'] * 1e3:.1f} ms")
    table.add_row("the bound", "", f"{balanced['bound_s'] * 1e3:.1f} ms")
    return table


def show(outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    if not outcome.ranks:
        return
    console.print(steps_table(outcome.ranks[0]))
    print("The bound is the time of computing alone at the measured speeds; a measured step also communicates.\n")
    table = Table(title="Seconds of the balanced training by rank", title_justify="left")
    for name in ("rank", "island", "device", "library", "wall", "compute", "inside", "bridge"):
        table.add_column(name, justify="right")
    for facts in outcome.ranks:
        seconds = [facts.get(name) for name in ("wall_s", "compute_s", "inside_s", "bridge_s")]
        cells = ["-" if value is None else f"{value:.2f}" for value in seconds]
        table.add_row(str(facts["rank"]), facts["island"], facts["device"], facts["library"], *cells)
    console.print(table)
    print(
        "compute: processor time of the training thread; inside, bridge: collectives within the island, and waiting "
        "for\nthe other one. Collectives overlap with the backward pass, so the parts may exceed the wall time.\n"
        "The simulated device computes on this machine's processor and takes the time of a slower device."
    )
    late = max(facts["late"] for facts in outcome.ranks)
    if late > 0.05:
        print(f"Oversubscribed: {late:.0%} of its operations ended later than modelled: this machine is too busy.")
    print("\nParameters, SHA-256 of all bytes:")
    for facts in outcome.ranks:
        print(f"  rank {facts['rank']}: {facts['sha256']}")
    print(f"\nAccuracy on the held-out fifth: {outcome.ranks[0]['accuracy']:.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="atoll")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--least-accuracy", type=float, default=LEAST_ACCURACY)
    arguments = parser.parse_args()
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
    facts = outcome.ranks[0]
    faster = facts["equal"]["step_s"] / facts["balanced"]["step_s"]
    good = f"{facts['accuracy']:.1%} accuracy, identical parameters on all ranks, a balanced step {faster:.2f}x as fast"
    print(f"\nAtoll: demo passed: {good} as an equal one, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
