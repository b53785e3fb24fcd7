# SPDX-License-Identifier: Apache-2.0
"""Records like those of trainings and sessions, made without either."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.watching.record import PlanEvent, WindowRecord
from atoll.watching.run_record import RunFile, TrainingRecord, bucket_of

DEVICES = ("cuda:0", "cuda:1", "cpu", "cpu")
ABOUT = {"devices": list(DEVICES), "islands": [[0, 1], [2, 3]], "policy": "minmax", "update_interval": 50}
WINDOW = WindowRecord(
    50, 0, "x", DEVICES, (96, 96, 40, 24), (0.30, 0.30, 0.21, 0.28), (0.01, 0.01, 0.01, 0.01), 0.364, 0.35, 0.35,
    (1.0, 1.0, 1.0, 1.0), None, 0, (0.03, 0.03, 0.12, 0.05), (0.02, 0.02, 0.02, 0.02), (0.03, 0.03, 0.05, 0.06),
    (0.012, 0.012, 0.0, 0.0), ((0, 1, 4e6), (1, 0, 4e6), (1, 2, 8e6), (2, 1, 8e6), (3, 0, 1e6)), {"loss": 2.0},
)  # fmt: skip


def windows(count: int, seed: int = 1) -> list[WindowRecord]:
    """Returns windows of a training whose rank 2 waits and whose loss falls."""
    chance = random.Random(seed)
    made = []
    for place in range(1, count + 1):
        times = tuple(seconds * chance.uniform(0.98, 1.02) for seconds in WINDOW.compute_seconds)
        wall = max(times) + 0.055
        exposed = tuple(max(times) - seconds + 0.03 for seconds in times)
        loss = 2.2 * math.exp(-place / 30) + 0.3
        made.append(replace(WINDOW, step=50 * place, compute_seconds=times, wall_seconds=wall, exposed_seconds=exposed,
                            noted={"loss": loss}))  # fmt: skip
    return made


def training(folder: Path, count: int = 40, is_closed: bool = True, **about: Any) -> TrainingRecord:
    record = TrainingRecord(str(folder), {**ABOUT, **about})
    for place, window in enumerate(windows(count)):
        if place == count // 2:
            shares = (100, 98, 34, 24)
            record.event(PlanEvent.new_plan(window.step, 1, shares, "rank 2 slowed down"))
            record.event(PlanEvent.drift(window.step, 2, "cpu", 1.31))
        record.window(replace(window, batches=(100, 98, 34, 24), plan=1) if place >= count // 2 else window)
    if is_closed:
        record.close()
    return record


def facts(seconds: float, origin: str = "mixed", missed: bool = False) -> dict[str, Any]:
    return {"origin": origin, "plan": "local" if origin == "local" else "rows", "seconds": seconds,
            "predicted": seconds * 0.97, "bound": 0.03, "up_bytes": 40000, "down_bytes": 9000, "joules": 0.4,
            "guard_used": missed, "missed": missed, "computing": 0.6 * seconds, "waiting": 0.3 * seconds,
            "sending": 0.2 * seconds, "receiving": 0.05 * seconds}  # fmt: skip


DIVISION = {
    "name": "rows",
    "operators": ["input", "conv1", "<relu>", "linear"],
    "plan": {
        "seconds": 0.035,
        "shares": [[[0, 8], [0, 0]], [[0, 5], [4, 8]], [[0, 4], [4, 8]], [[0, 1], [0, 0]]],
        "events": [["up", 0, 0.0, 0.01], ["robot", 1, 0.0, 0.015], ["server", 1, 0.01, 0.02], ["robot", 2, 0.015, 0.02],
                   ["server", 2, 0.02, 0.022], ["down", 2, 0.022, 0.03], ["robot", 3, 0.03, 0.035]],
    },
}  # fmt: skip


def inferences(folder: Path, seconds: Sequence[float], deadline: float | None = 0.1, is_closed: bool = True) -> Path:
    clock = iter(range(1_000_000))
    file = RunFile(str(folder), "inference", {"policy": "auto", "deadline": deadline, "to": "10.0.0.2:4700"},
                   now=lambda: 1.7e9 + 0.05 * next(clock))  # fmt: skip
    counts: dict[int, int] = {}
    missed = 0
    for place, each in enumerate(seconds):
        is_late = deadline is not None and each > deadline
        missed += is_late
        file.add("inference", facts(each, "local" if place % 10 == 0 else "mixed", is_late))
        counts[bucket_of(each)] = counts.get(bucket_of(each), 0) + 1
        if place == 1:
            file.add("division", DIVISION)
        if place % 20 == 0:
            file.add("state", {"local_seconds": 0.12, "up_rate": 1e6 + 1e4 * place, "down_rate": 2e6, "latency": 0.002,
                               "server": "cpu", "link_losses": 0})  # fmt: skip
    number = len(seconds)
    file.add("totals", {"inferences": number, "missed": missed, "guarded": missed, "up_bytes": 40000 * number,
                        "down_bytes": 9000 * number, "joules": 0.4 * number,
                        "origins": {"local": (number + 9) // 10, "mixed": number - (number + 9) // 10},
                        "latencies": {str(bucket): count for bucket, count in counts.items()}})  # fmt: skip
    if is_closed:
        file.close()
    return file.path
