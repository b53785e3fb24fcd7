# SPDX-License-Identifier: Apache-2.0
"""Runs many trials and summarises them: a table by fault, JSON, and a page of docs/results."""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from atoll.bench import machine
from chaos_run import Outcome, run_trial
from chaos_trial import DEATH_S, FAULTS, HEARTBEAT_S, LATE_S, MAKING_S, SILENCE_S, draw

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "results"
SOAK = ROOT / "build" / "soak"
MIN_NAMED = 0.95
PARTS = (("otherwise", True), ("before", False))  # whether the victim was known to the others
COMMAND = ".venv/bin/python tests/python/chaos/chaos.py"


def results() -> Any:
    """The module that the pages of docs/results share."""
    if (folder := str(ROOT / "bench")) not in sys.path:
        sys.path.append(folder)
    import results

    return results


def run_all(seeds: Iterable[int], say: Callable[[str], None], folder: Path) -> list[Outcome]:
    outcomes = []
    for number, seed in enumerate(seeds, 1):
        trial = draw(seed)
        outcome = run_trial(trial, folder / str(seed))
        outcomes.append(outcome)
        worst = f"{max(outcome.raised_s):.2f} s" if outcome.raised_s else "no rank raised"
        say(f"{number}: {'good' if outcome.good else 'BAD'}, {worst}, {outcome.seconds:.1f} s: {trial.describe()}")
        if not outcome.good:
            say(f"    the machine's load was {outcome.load} on {os.cpu_count()} processors")
        for line in [*outcome.complaints(), *(f"not named: {text}" for text in outcome.unnamed)]:
            say(f"    {line}")
        if not outcome.good or outcome.unnamed:
            say(f"    again: {COMMAND} --seed {seed}" + ("" if outcome.good else f" (logs in {folder / str(seed)})"))
    return outcomes


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Returns sums over trials; times are those of the last rank of each trial."""
    slowest = [max(outcome.raised_s) for outcome in outcomes if outcome.raised_s]
    named, unnamed = sum(outcome.named for outcome in outcomes), sum(len(outcome.unnamed) for outcome in outcomes)
    return {
        "trials": len(outcomes),
        "struck": sum(outcome.struck for outcome in outcomes),
        "load": max((outcome.load for outcome in outcomes), default=0.0),
        "hangs": sum(bool(outcome.hangs) for outcome in outcomes),
        "wrong": sum(bool(outcome.wrong) for outcome in outcomes),
        "late": sum(bool(outcome.late) for outcome in outcomes),
        "other": sum(bool(outcome.faults) for outcome in outcomes),
        "exceptions": named + unnamed,
        "named": named,
        "median_s": statistics.median(slowest) if slowest else None,
        "max_s": max(slowest, default=None),
    }


def frame(command: str, seed: int) -> dict[str, Any]:
    """Returns the facts that every report states about its run."""
    return {
        "seed": seed,
        "command": command,
        "run": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": results().commit(),
        "machine": machine.describe(),
        "torch": torch.__version__,
    }


def preamble(facts: dict[str, Any]) -> str:
    computer = facts["machine"]
    return (
        f"Run {facts['run']} on {computer['processor']}, {computer['cores']} cores, Linux {computer['kernel']}, torch "
        f"{facts['torch']}, at commit {facts['commit']}. Again with `{facts['command']}`.\n"
    )


def save(name: str, facts: dict[str, Any]) -> Path:
    SOAK.mkdir(parents=True, exist_ok=True)
    path = SOAK / f"{name}.json"
    path.write_text(json.dumps(results().rounded(facts), indent=1) + "\n")
    return path


def by_fault(outcomes: list[Outcome]) -> dict[str, Any]:
    return {name: summary([each for each in outcomes if each.fault == name]) for name in FAULTS}


def document(outcomes: list[Outcome], seed: int) -> dict[str, Any]:
    facts = frame(f"{COMMAND} --seed {seed} --trials {len(outcomes)}", seed)
    facts["all"] = summary(outcomes)
    facts["parts"] = {part: by_fault([each for each in outcomes if each.heard == is_heard]) for part, is_heard in PARTS}
    facts["faults"] = by_fault(outcomes)
    facts["trials"] = [asdict(outcome) for outcome in outcomes]
    return facts


def failures(facts: dict[str, Any]) -> list[str]:
    """Returns the promises that the whole run has broken."""
    total = facts["all"]
    found = [f"{total[key]} trials {what}" for key, what in TROUBLES.items() if total[key]]
    if total["named"] < MIN_NAMED * total["exceptions"]:
        found.append(f"only {total['named']} of {total['exceptions']} exceptions name the right rank")
    return found


TROUBLES = {
    "hangs": "hung",
    "wrong": "had wrong results",
    "late": "raised too late",
    "other": "crashed, or raised where they must not, or not where they must",
}
WORDS = {
    "kill": "process killed",
    "stop": "process stopped",
    "cut": "link cut",
    "half_open": "packets of a link vanish",
    "store": "store killed",
    "slow": "rank slowed down 100 times",
    "descriptors": "descriptors run out",
}


def row(title: str, facts: dict[str, Any]) -> list[str]:
    seconds = [f"{facts[key]:.2f} s" if facts[key] is not None else "-" for key in ("median_s", "max_s")]
    share = f"{facts['named'] / facts['exceptions']:.1%}" if facts["exceptions"] else "-"
    counts = [str(facts[key]) for key in ("trials", "struck", "hangs", "wrong", "late", "other", "exceptions")]
    return [title, *counts, *seconds, share]


def table(facts: dict[str, Any], part: str | None = None) -> str:
    """Returns the table of all trials, or of one part of them."""
    titles = ["fault", "trials", "struck", "hangs", "wrong", "late", "other", "exceptions", "median", "max",
              "right rank named"]  # fmt: skip
    faults = facts["faults"] if part is None else facts["parts"][part]
    rows = [row(WORDS[name], each) for name, each in faults.items() if each["trials"]]
    if part is None:
        rows.append(row("all", facts["all"]))
    return str(results().table(titles, rows))


def page(facts: dict[str, Any]) -> str:
    return f"""# Faults at random

{preamble(facts)}
Each trial draws from its number: 2 to 6 ranks in islands, on CPUs and simulated devices, on one host or several; groups
and what they call, with empty and odd sizes, at once or later; a fault, and the point at which it comes: while groups
are made, before, inside or after an operation, while they are destroyed. Every result is compared with what it must be.
Some faults come when all is over: they have not struck. The machine's load was {facts["all"]["load"]:g} at most.

{table(facts)}
## While groups are made, before the victim was heard of

The others wait for its entry in the store, of this group or of the next, or for what its island's library wants of it:
who never came can only be missed when the time is over. The groups have {MAKING_S:g} s, and the exception is there at
most {LATE_S:g} s later.

{table(facts, "before")}
## Otherwise

At most {DEATH_S:g} s when a process dies, a link breaks or the store ends, and {SILENCE_S:g} s when nothing is heard
(the heartbeat is {HEARTBEAT_S:g} s). Descriptors run out before they are missed: who lacks them raises within the
group's timeout and {LATE_S:g} s more, the others at most {DEATH_S:g} s after it.

{table(facts, "otherwise")}
- Time: from the fault to the exception of the trial's last rank; inside a call, from the call on if that is later.
- A slow rank, and a store that is lost when groups have been made, must be no exception at all.
- Right rank named: the exception names the rank that the fault happened to, not only the one that reported it.
- Other: a crash, an exception where none belongs, or none where one does.
"""


def write(facts: dict[str, Any], pages: Path | None) -> Path:
    """Saves the facts, and the page if `pages` is a folder."""
    if pages:
        (pages / "chaos.md").write_text(page(facts))
    return save("chaos", facts)
