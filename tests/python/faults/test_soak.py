# SPDX-License-Identifier: Apache-2.0
"""An hour of random operations and random faults (SOAK_MINUTES), drawn from a seed (SOAK_SEED) that the reports in
build/soak hold."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.bench import values
from atoll.bench.block import run_block
from atoll.bench.operations import OPERATIONS, Problem, make
from fault_jobs import Job, Me

pytestmark = pytest.mark.soak

REPORTS = Path(__file__).parents[3] / "build/soak"
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
SEED = int(os.environ.get("SOAK_SEED", str(random.SystemRandom().getrandbits(32))))
LAYOUTS = ["AA", "AAA", "ABA", "AABB", "ABAB", "ABC", "AAAAAB"]
COUNTS = [1, 2, 61, 1009, 16_384, 32_768, 65_537, 300_007, 1_500_007]
HEARTBEAT_S = 2.0
DEATH_S, SILENCE_S = 2.0, HEARTBEAT_S + 1.0
BATCH = 40  # operations between two looks at the clock


def random_problem(rng: random.Random) -> Problem:
    while True:
        operation, dtype, reduction = (
            rng.choice(list(names)) for names in (OPERATIONS, values.NUMBER_TYPES, values.REDUCTIONS)
        )
        try:
            values.check_supported(dtype, reduction)
        except ValueError:
            continue
        item = values.NUMBER_TYPES[dtype].dtype.itemsize
        return Problem(operation, rng.choice(COUNTS) * item, dtype, reduction)


def operate(rng: random.Random, groups: list[dist.ProcessGroup]) -> int:
    """A batch of operations, each checked on every element; equal on all ranks. Returns the bytes of their buffers."""
    moved = 0
    for _ in range(BATCH):
        problem, group = random_problem(rng), rng.choice(groups)
        operation = make(problem, group)
        block = run_block(operation, min(rng.randint(1, 3), operation.most_calls))
        assert block.wrong == 0, f"{block.wrong} wrong elements: {problem}, {dist.get_process_group_ranks(group)}"
        moved += operation.bytes * block.calls
    return moved


def operate_for(me: Me, seed: int, seconds: float) -> None:
    me.join(seconds=60)
    groups = [dist.new_group(timeout=timedelta(seconds=60)) for _ in range(2)]
    rng, begin, moved, batches = random.Random(seed), time.monotonic(), 0, 0
    go_on = torch.ones(1)
    while go_on.item():
        moved, batches = moved + operate(rng, groups), batches + 1
        go_on.fill_(time.monotonic() - begin < seconds)
        dist.broadcast(go_on, src=0)
    me.tell("done", {"operations": batches * BATCH, "bytes": moved})
    dist.destroy_process_group()


def operate_forever(me: Me, seed: int) -> None:
    me.join(seconds=60)
    rng = random.Random(seed)
    me.tell("running")
    while True:
        operate(rng, [dist.group.WORLD])


class Report:
    """What a test did, as JSON; written after each trial, so that a run that is cut short leaves it too."""

    def __init__(self, name: str) -> None:
        self.path = REPORTS / f"{name}.json"
        self.facts: dict[str, Any] = {"seed": SEED, "minutes": MINUTES}
        REPORTS.mkdir(parents=True, exist_ok=True)

    def write(self, **facts: Any) -> None:
        self.facts |= facts
        self.path.write_text(json.dumps(self.facts, indent=1) + "\n")


def seconds_left(share: float) -> Iterator[float]:
    """Until `share` of the time is over: what is left of it."""
    end = time.monotonic() + share * MINUTES * 60
    while (left := end - time.monotonic()) > 0:
        yield left


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_random_operations(tmp_path: Path, transport: str) -> None:
    rng, report = random.Random(SEED), Report(f"operations-{transport}")
    done = dict.fromkeys(LAYOUTS, 0)
    moved = 0
    for trial, _ in enumerate(seconds_left(0.25)):
        layout = rng.choice(LAYOUTS)
        folder = tmp_path / str(trial)
        folder.mkdir()
        arguments = (rng.getrandbits(32), 20.0)
        with Job(folder, operate_for, layout, arguments, {"ATOLL_TRANSPORT": transport}) as job:
            facts = job.wait_for("done", seconds=300)[0].details
            job.wait_for("end")
            job.check_ends()
        done[layout] += facts["operations"]
        moved += facts["bytes"]
        report.write(trials=trial + 1, operations=done, bytes=moved, wrong=0)
    assert sum(done.values()) > 0


def test_random_faults(tmp_path: Path) -> None:
    rng, report = random.Random(SEED + 1), Report("faults")
    trials, named, worst = {"kill": 0, "stop": 0}, 0, {"kill": 0.0, "stop": 0.0}
    for trial, _ in enumerate(seconds_left(0.5)):
        layout, transport = rng.choice(LAYOUTS), rng.choice(["auto", "tcp"])
        victim, fault = rng.randrange(len(layout)), rng.choice(list(trials))
        folder = tmp_path / str(trial)
        folder.mkdir()
        environment = {"ATOLL_TRANSPORT": transport, "ATOLL_HEARTBEAT": str(HEARTBEAT_S)}
        with Job(folder, operate_forever, layout, (rng.getrandbits(32),), environment) as job:
            job.wait_for("running")
            threading.Event().wait(rng.uniform(0, 0.5))  # any moment of any operation
            at = job.signal(victim, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            survivors = [rank for rank in range(job.size) if rank != victim]
            failures = job.failures(survivors, at, DEATH_S if fault == "kill" else SILENCE_S)
        trials[fault] += 1
        named += all(f"rank {victim}" in failure.text for failure in failures.values())
        worst[fault] = max(worst[fault], *(failure.at - at for failure in failures.values()))
        report.write(trials=trials, named=named, worst_seconds=worst, hangs=0, wrong=0)
    assert named >= 0.95 * sum(trials.values()), report.facts
