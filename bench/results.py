# SPDX-License-Identifier: Apache-2.0
"""Shared by all scenarios: settings, the frame of a result file, Markdown tables."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from atoll.bench import machine
from result_files import RESULTS, ROOT, store


@dataclass
class Settings:
    quick: bool = False  # tiny sizes and few rounds: shows that everything runs, measures nothing
    force_busy: bool = False
    output: Path = RESULTS
    backends: list[str] = field(default_factory=lambda: ["atoll", "gloo"])  # the first is what is being measured
    data: Path | None = None  # CIFAR-10's binary files instead of digits
    fraction: float | None = None  # of the papers' epochs or updates
    full: bool = False  # recorded links from beginning to end

    def rounds(self, number: int) -> int:
        return 2 if self.quick else number


class Scenario(Protocol):
    """The interface of each scenario module. It may also have PAGES, further ones, and `kept` (result_files.Part)."""

    TITLE: str

    @staticmethod
    def measure(settings: Settings) -> dict[str, Any]: ...

    @staticmethod
    def report(document: dict[str, Any]) -> str: ...


class BusyError(RuntimeError):
    """Other processes use the machine."""


def say(text: str) -> None:
    print(f"bench: {text}", flush=True)


def git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def commit() -> str:
    """Returns the commit, with "-dirty" if files that affect measurements differ from it."""
    name = git("describe", "--always").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs", ":(exclude)*.md").returncode
    return f"{name}{'-dirty' if changed else ''}" if name else "unknown"


def run_scenario(name: str, scenario: Scenario, settings: Settings) -> Path:
    """Measures and writes NAME.json (result_files.store). Raises BusyError if other processes use the machine, unless
    that is forced."""
    before = machine.cores_used_by_others()
    is_untimed = any(hasattr(scenario, each) for each in ("SIMULATED", "UNTIMED"))
    may_begin = settings.force_busy or is_untimed or hasattr(scenario, "QUIET_STARTS")
    if before > machine.BUSY_CORES and not may_begin:
        busy = f"other processes use {before:.2f} cores of this machine"
        raise BusyError(f"{busy} (--force-busy measures anyway and marks the result)")
    say(f"{name}: {scenario.TITLE}")
    load, own = machine.OthersLoad(), machine.own_seconds()
    found = scenario.measure(settings)
    during = load.cores(machine.own_seconds() - own)
    flags = "".join(f" --{each}" for each in ("quick", "full") if getattr(settings, each))
    document = {
        "scenario": name,
        "command": f"bench/run.py {name}{flags}",
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": machine.describe(),
        "torch": torch.__version__,
        "quick": settings.quick,
        "others_cores_before": round(before, 3),
        "others_cores_during": round(during, 3),
        "busy": not is_untimed and max(before, during) > machine.BUSY_CORES,
        "backends": settings.backends,
        **found,
    }
    return store(name, scenario, document, settings.output)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---:|" * len(titles)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def ratio_text(ratio: dict[str, float]) -> str:
    """Returns the median and the 10th to 90th percentile over rounds, such as 3.10 (2.90 to 3.30)."""
    return f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f})"


def microseconds(value: float) -> str:
    """Returns the time with a suitable unit, such as 12.3 us, 4.56 ms or 2.340 s."""
    if value < 1000:
        return f"{value:.1f} us"
    return f"{value / 1000:.2f} ms" if value < 1e6 else f"{value / 1e6:.3f} s"
