# SPDX-License-Identifier: Apache-2.0
"""Records the outcome of the last `make aarch64` in docs/small-computers.md."""

import re
from datetime import UTC, datetime
from pathlib import Path

from common import ROOT, commit, with_part

PAGE = ROOT / "docs/small-computers.md"
BEGIN, END = "<!-- emulator: written by make aarch64 -->", "<!-- emulator: end -->"
NOT_YET = "Not recorded yet: `make aarch64` writes its outcome here."
_LEFT_OUT = re.compile(r"^    (\S+)(?:  # .+)?$", re.MULTILINE)


def left_out(text: str) -> list[str]:
    """Returns the patterns of tests/emulator.cmake."""
    return _LEFT_OUT.findall(text)


def outcome(passed: int, failed: int, skipped: int, seconds: float, commit_name: str, day: str) -> str:
    """Returns a table with one row."""
    patterns = left_out((ROOT / "tests/emulator.cmake").read_text())
    return "\n".join(
        [
            "| tests passed | failed | skipped | left out | minutes | day | commit |",
            "|---|---|---|---|---|---|---|",
            f"| {passed:,} | {f'**{failed:,}**' if failed else 0} | {skipped:,} "
            f"| {', '.join(f'`{pattern}`' for pattern in patterns)} | {seconds / 60:.0f} | {day} | {commit_name} |",
        ]
    )


def record(passed: int, failed: int, skipped: int, seconds: float, page: Path = PAGE) -> None:
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    content = outcome(passed, failed, skipped, seconds, commit(), day)
    page.write_text(with_part(page.read_text(), BEGIN, END, content))
