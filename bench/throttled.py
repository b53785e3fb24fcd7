# SPDX-License-Identifier: Apache-2.0
"""A cross-check of the modelled devices: ranks that really compute, on a core each, one of which is stopped and
continued all the time. Needs two cores."""

import os
import signal
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import uneven
from atoll.bench.block import quantile
from contenders import Place, TorchRanks
from results import Settings, say, table

TITLE = "a throttled processor beside one that is not"
RUNNING = 0.005  # seconds without a stop
STOPPED = {"1.4": 0.002, "2": 0.005}  # named by the intended slowdown; the measured one counts
POLICIES = ("equal", "kaitian", "minmax")
TURNS = 5


class Throttle:
    """Stops processes for `stopped` seconds after each RUNNING seconds. A context manager; they run on afterwards."""

    def __init__(self, pids: Sequence[int], stopped: float) -> None:
        self._pids, self._stopped = pids, stopped
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.wait(RUNNING):
            self._signal(signal.SIGSTOP)
            self._ends.wait(self._stopped)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)

    def __enter__(self) -> "Throttle":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()


def measure(settings: Settings) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("throttled ranks need a core each, and this process may use only one: allow it two")
    run = uneven.Run(
        "mobilenet", {"width": 0.1 if settings.quick else 0.25}, batch=8 if settings.quick else 64,
        steps=3 if settings.quick else 15, warm_up=1 if settings.quick else 3, rate=0.02,
    )  # fmt: skip
    stopped = {"2": STOPPED["2"]} if settings.quick else STOPPED
    rows = [
        {"meant": meant, "turn": turn, **row}
        for meant, seconds in stopped.items()
        for turn in range(1 if settings.quick else TURNS)
        for row in _measure(cores, run, seconds)
    ]
    return {"rows": rows, "batch": run.batch, "steps": run.steps, "width": run.options["width"], "running": RUNNING}


def _measure(cores: Sequence[int], run: uneven.Run, stopped: float) -> list[dict[str, Any]]:
    """Measures both devices alone, then together with each policy."""
    fast, slow = (_place(core, island) for core, island in zip(cores, ("fast", "slow"), strict=False))
    rows = []
    for name, places, throttled in (("fast alone", [fast], []), ("slow alone", [slow], [0]), ("", [fast, slow], [1])):
        with TorchRanks(places, ["atoll"]) as ranks, Throttle([ranks.pids[rank] for rank in throttled], stopped):
            for policy in ("equal",) if name else POLICIES:
                half = {"batch": run.batch // 2} if name else {}
                row = uneven.train(ranks, uneven.Run(**{**vars(run), **half, "policy": policy}))
                rows.append({"case": name or policy, **row})
                say(f"{name or policy}: {uneven.batches_text(row)}, {row['samples_per_s']:.1f} samples/s")
    return rows


def _place(core: int, island: str) -> Place:
    return Place(("taskset", "-c", str(core)), (("ATOLL_DEVICE", "cpu"), ("ATOLL_ISLAND", island)))


def rates(document: dict[str, Any], meant: str) -> dict[str, list[float]]:
    """Returns samples per second by case and turn."""
    found: dict[str, list[float]] = {}
    for row in document["rows"]:
        if row["meant"] == meant:
            found.setdefault(row["case"], []).append(row["samples_per_s"])
    return found


def of_ideal(document: dict[str, Any], meant: str, policy: str) -> list[float]:
    """Returns, by turn, samples per second as a share of the sum of both devices alone."""
    of = rates(document, meant)
    both = zip(of["fast alone"], of["slow alone"], strict=True)
    return [ours / (fast + slow) for ours, (fast, slow) in zip(of[policy], both, strict=True)]


def report(document: dict[str, Any]) -> str:
    text = (
        f"Two ranks on a core each. One of them is stopped again and again after {document['running'] * 1e3:g} ms of "
        "running, its communication too, so that it is slower; how much slower is measured, by what both do alone. "
        f"MobileNetV2 at {document['width']} of its width on digits at 3 x 32 x 32, global batch {document['batch']}, "
        f"half of it alone, {document['steps']} steps; medians of turns, and their range. Nothing is modelled here. "
        "Compare the last column with that of [modelled devices](kaitian.md).\n\n"
    )
    cells = []
    for meant in dict.fromkeys(row["meant"] for row in document["rows"]):
        of = rates(document, meant)
        slower = [fast / slow for fast, slow in zip(of["fast alone"], of["slow alone"], strict=True)]
        for case, found in of.items():
            shown = _spread(of_ideal(document, meant, case), "{:.0%}") if case in POLICIES else ""
            batches = next(row for row in document["rows"] if (row["meant"], row["case"]) == (meant, case))
            cells.append(
                [_spread(slower, "{:.2f}"), case, uneven.batches_text(batches), _spread(found, "{:.1f}"), shown]
            )
    return text + table(["slowdown", "case", "batches, first turn", "samples/s", "of the sum of both alone"], cells)


def _spread(values: Sequence[float], form: str) -> str:
    low, high = (form.format(value) for value in (min(values), max(values)))
    return f"{form.format(quantile(values, 0.5))} ({low} to {high})"
