# SPDX-License-Identifier: Apache-2.0
"""Records the outcome of the sanitizers in the last `make verify` in docs/testing.md."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common import ROOT, with_part

PAGE = ROOT / "docs/testing.md"
BEGIN, END = "<!-- sanitizers: written by make verify -->", "<!-- sanitizers: end -->"
NOT_YET = "Not recorded yet: `make verify` writes its outcome here."
WHAT = {"asan": "address (with leaks) and undefined behaviour", "tsan": "threads"}


@dataclass(frozen=True)
class Run:
    """`preset` is one of CMakePresets.json. A sanitizer's finding ends the test's program, so it is a failed test."""

    preset: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def outcome(runs: list[Run], commit_name: str, day: str) -> str:
    """Returns a table with a row for each run."""
    rows = [
        f"| {WHAT[run.preset]} | {run.passed:,} | {f'**{run.failed:,}**' if run.failed else 0} | {run.skipped:,} "
        f"| {run.seconds / 60:.0f} | {day} | {commit_name} |"
        for run in runs
    ]
    head = [
        "| sanitizers | tests passed | failed | skipped | minutes | day | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def record(runs: list[Run], commit_name: str, page: Path = PAGE) -> None:
    """Writes the table into the page. `commit_name` is the commit that was built."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    page.write_text(with_part(page.read_text(), BEGIN, END, outcome(runs, commit_name, day)))
