# SPDX-License-Identifier: Apache-2.0
"""Start-up cost by the number of ranks, which are threads of one process."""

import json
import subprocess
from pathlib import Path
from typing import Any

import chart
import peers
from compare import spread
from results import Settings, say, table

TITLE = "start-up cost by number of ranks"
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
PHASES = {"make_s": "groups made", "first_s": "first all_reduce", "second_s": "second all_reduce"}


def measure(settings: Settings) -> dict[str, Any]:
    program = peers.cxx_program("startup_cost")
    rows = []
    for ranks in RANKS[:3] if settings.quick else RANKS:
        runs = [_run(program, ranks) for _ in range(settings.rounds(5))]
        row = {"ranks": ranks, "links": runs[0]["links"]}
        row |= {phase: spread([run[phase] for run in runs]) for phase in PHASES}
        rows.append(row)
        times = (f"{text} {row[phase]['median'] * 1e3:.1f} ms" for phase, text in PHASES.items())
        say(f"{ranks} ranks: {', '.join(times)}")
    settings.output.mkdir(parents=True, exist_ok=True)
    (settings.output / "startup.svg").write_text(_plot(rows))
    return {"rows": rows}


def _run(program: Path, ranks: int) -> dict[str, Any]:
    done = subprocess.run([program, str(ranks)], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"startup_cost {ranks}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _plot(rows: list[dict[str, Any]]) -> str:
    lines = {text: [(row["ranks"], row[phase]["median"] * 1e3) for row in rows] for phase, text in PHASES.items()}
    return chart.log_log("Start-up cost: ranks as threads of one process", "ranks", "ms", lines)


def report(document: dict[str, Any]) -> str:
    titles = ["ranks", *(f"{text} (ms)" for text in PHASES.values()), "links opened"]
    rows = [
        [str(row["ranks"]), *(f"{row[phase]['median'] * 1e3:.1f}" for phase in PHASES), str(row["links"])]
        for row in document["rows"]
    ]
    text = (
        "Each rank is a thread with listeners, loop thread and group of its own; all meet through one store in "
        "memory. Links open with the first all_reduce (1024 float32 values, checked). Medians over runs, each in a "
        "new process.\n\n"
        "![Start-up cost by number of ranks](startup.svg)\n\n"
    )
    return text + table(titles, rows)
