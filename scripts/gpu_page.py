# SPDX-License-Identifier: Apache-2.0
"""The results of `make gpu` as text: the summary, the generated part of docs/hardware.md, and the page of a rehearsal
without a card."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, fail, say, with_part
from gpu_running import read_rows
from gpu_steps import STEPS

PAGE = ROOT / "docs/hardware.md"
RECORD = ROOT / "docs/results/gpu.json"
REHEARSAL = ROOT / "docs/results/gpu_rehearsal.md"
BEGIN, END = "<!-- gpu: written by scripts/gpu.py --page -->", "<!-- gpu: end -->"
NOT_RUN = "not run"
# By names of atoll.vendors: the name for readers, and the library inside an island.
VENDORS = {
    "nvidia": ("NVIDIA GPU", "NCCL"),
    "amd": ("AMD GPU", "RCCL"),
    "intel": ("Intel GPU", "oneCCL (`xccl`)"),
    "huawei": ("Huawei NPU", "HCCL"),
    "cambricon": ("Cambricon MLU", "CNCL"),
    "moorethreads": ("Moore Threads GPU", "MCCL"),
}
SPLIT = tuple(step.name for step in STEPS if step.name.startswith("split-"))
TRAINING = tuple(step.name for step in STEPS if step.name not in SPLIT)
BETWEEN = {"one-card": "two islands on one card", "pair": "messages in memory of a device, over UCX"}

Rows = Sequence[dict[str, Any]]


def machine_of(rows: Rows) -> dict[str, Any]:
    found = next((row for row in rows if row.get("kind") == "machine"), None)
    if found is None:
        raise fail("the results do not say which machine they are of: the trial ended before its first step")
    return found


def steps_of(rows: Rows) -> dict[str, dict[str, Any]]:
    """Returns the last row of each step that ended or was left out."""
    return {row["step"]: row for row in rows if row.get("kind") == "step"}


def texts_of(rows: Rows, step: str) -> list[str]:
    return [row["text"] for row in rows if row.get("kind") == "figure" and row["step"] == step and row.get("text")]


def headline(machine: dict[str, Any]) -> str:
    runtime = f" ({machine['runtime']})" if machine.get("runtime") else ""
    return (
        f"{machine['name']}, torch {machine['torch']}{runtime}, Python {machine['python']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['day']}, commit {machine['commit']}"
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table_of_steps(rows: Rows) -> str:
    done = steps_of(rows)
    lines = ["| step | what | state | seconds |", "|---|---|---|---:|"]
    for step in STEPS:
        row = done.get(step.name, {"state": NOT_RUN, "seconds": 0.0})
        said = f": {cell(row['said'])}" if row.get("said") else ""
        seconds = f"{row['seconds']:.0f}" if row["seconds"] else "-"
        lines.append(f"| `{step.name}` | {step.what} | {row['state']}{said} | {seconds} |")
    return "\n".join(lines)


def findings(rows: Rows) -> str:
    parts = []
    for step in STEPS:
        if texts := texts_of(rows, step.name):
            parts.append("\n".join([f"**{step.name}**", "", *(f"- {text}" for text in texts)]))
    return "\n\n".join(parts)


def build_text(machine: dict[str, Any]) -> str:
    if not machine.get("build_s"):
        return "Atoll was installed already."
    return f"Atoll was built in {machine['build_s']:.0f} s ({machine['build_cpu_s']:.0f} s of processor time)."


def summary(rows: Rows) -> str:
    """Returns the summary of one trial as Markdown."""
    machine = machine_of(rows)
    quick = " Tiny sizes (`--quick`): the figures mean nothing." if machine["quick"] else ""
    parts = [f"# Atoll on {machine['device']}", f"{headline(machine)}. {build_text(machine)}{quick}"]
    return "\n\n".join([*parts, table_of_steps(rows), findings(rows)]).rstrip() + "\n"


def told(rows: Rows, names: Sequence[str]) -> str:
    """Returns the outcome of these steps as a cell of a table."""
    done = {name: row["state"] for name, row in steps_of(rows).items() if name in names}
    passed = [f"`{name}`" for name in names if done.get(name) == "passed"]
    others = [f"`{name}` {done[name]}" for name in names if done.get(name, "passed") not in ("passed", "left out")]
    texts = ([f"run: {', '.join(passed)}"] if passed else []) + others
    return "; ".join(texts) or NOT_RUN


def state_of(rows: Rows) -> str:
    states = [row["state"] for row in steps_of(rows).values()]
    if not any(state in ("passed", "failed", "timed out") for state in states):
        return NOT_RUN
    if any(state in ("failed", "timed out") for state in states):
        return "run, with failures"
    return "**run**" if len(states) == len(STEPS) and set(states) == {"passed"} else "run in part"


def part(records: dict[str, Rows]) -> str:
    """Returns the generated part of docs/hardware.md; `records` has the rows of each vendor's last trial."""
    lines = ["| device | library inside | training, collectives | split inference | state |", "|---|---|---|---|---|"]
    for vendor, (name, library) in VENDORS.items():
        rows = records.get(vendor, [])
        cells = [name, library, told(rows, TRAINING), told(rows, SPLIT), state_of(rows)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| between ranks | state |", "|---|---|"]
    everything = [row for rows in records.values() for row in rows]
    lines += [f"| {what} | {told(everything, (step,))} |" for step, what in BETWEEN.items()]
    blocks = ["\n".join(lines)]
    for vendor, rows in records.items():
        blocks += [f"### {VENDORS[vendor][0]}", f"{headline(machine_of(rows))}.", table_of_steps(rows), findings(rows)]
    if not records:
        blocks.append("No card has run `make gpu` yet.")
    return "\n\n".join(blocks).rstrip()


def saved() -> dict[str, Rows]:
    found: dict[str, Rows] = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    return found


def results_in(folder: Path) -> Rows:
    path = folder / "results.jsonl" if folder.is_dir() else folder
    if not path.is_file():
        raise fail(f"{path} is missing: give the folder that `make gpu` wrote its results to")
    return read_rows(path)


def fill(folder: Path) -> None:
    """Keeps the results in docs/results/gpu.json and writes them into docs/hardware.md."""
    rows = results_in(folder)
    machine = machine_of(rows)
    if machine["vendor"] not in VENDORS or machine["quick"]:
        what = "tiny sizes (--quick)" if machine["quick"] else machine["name"]
        raise fail(f"these results are of {what}: docs/hardware.md takes those of a card, at full size")
    records = {**saved(), machine["vendor"]: rows}
    RECORD.write_text(json.dumps(records, indent=1) + "\n")
    PAGE.write_text(with_part(PAGE.read_text(), BEGIN, END, part(records)))
    say(f"{RECORD.relative_to(ROOT)} and {PAGE.relative_to(ROOT)} are written")


def rehearsal(rows: Rows) -> str:
    machine = machine_of(rows)
    tiny = " and with tiny sizes" if machine["quick"] else ""
    intro = (
        "# A rehearsal of `make gpu` without a card\n\nWritten by `scripts/gpu.py --rehearsal`. **No GPU took part, "
        "and no figure here says anything about one**: Atoll's simulated device stood in for the card, on the "
        f"processors of a shared machine{tiny}. It shows that the build, every step and the record work. What real "
        "cards did is in [hardware](../hardware.md)."
    )
    about = f"{headline(machine)}. {build_text(machine)}"
    return "\n\n".join([intro, about, table_of_steps(rows), findings(rows)]).rstrip() + "\n"


def write_rehearsal(folder: Path) -> None:
    rows = results_in(folder)
    if machine_of(rows)["device"] != "sim":
        raise fail("these results are of a real device: --page is for them")
    REHEARSAL.write_text(rehearsal(rows))
    say(f"{REHEARSAL.relative_to(ROOT)} is written")
