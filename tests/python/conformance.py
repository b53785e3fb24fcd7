# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own distributed tests in every mode, and writes the tables of docs/conformance.md.

    python conformance.py [--page-only] [MODE ...]

Counts come from the runs, and are kept in docs/results/conformance.json; what backends lack comes from the contract."""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/conformance.md"
RECORD = ROOT / "docs/results/conformance.json"
sys.path.insert(0, str(HERE / "contract"))


@dataclass(frozen=True)
class Run:
    """One mode of distributed_suite.py."""

    options: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        return f"`{' '.join(self.options) or 'distributed_suite.py'}`"


SAME = "the same over two islands"
ON_SIM = ("--sim", "--ranks", "4")
RUNS = {
    "one island": Run((), "all tests that Gloo must pass on a machine without an accelerator"),
    "A,B,A": Run(("--islands", "A,B,A"), SAME),
    "in DETAIL mode": Run(
        ("--detail",),
        "with `TORCH_DISTRIBUTED_DEBUG=DETAIL`: PyTorch wraps every group, and compares the ranks' calls over Gloo "
        "before each",
    ),
    "in DETAIL mode, A,B,A": Run(("--detail", "--islands", "A,B,A"), SAME),
    "on sim": Run(ON_SIM, "simulated devices stand in for CUDA's, so that tests of devices run too"),
    "on sim, A,B,B,A": Run((*ON_SIM, "--islands", "A,B,B,A"), SAME),
    "on sim, NCCL's tests": Run((*ON_SIM, "--as", "nccl"), "the tests that PyTorch has for NCCL"),
    "on sim, A,B,B,A, NCCL's tests": Run((*ON_SIM, "--as", "nccl", "--islands", "A,B,B,A"), SAME),
}
RUN_LIMIT_S = 3500


def measured(run: Run) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, str(HERE / "distributed_suite.py"), *run.options, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
        if not path.exists():
            raise RuntimeError(
                f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
            )
        found: dict[str, Any] = json.loads(path.read_text())
    version = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=False)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return {**found, "options": list(run.options), "torch": torch.__version__, "measured": when,
            "commit": version.stdout.strip()}  # fmt: skip


def runs_text(record: dict[str, Any]) -> str:
    """Returns what passed in each mode, and what was left out."""
    lines = ["| run | what | passed | failed | skipped by PyTorch | left out |", "|---|---|---:|---:|---:|---:|"]
    for name, run in RUNS.items():
        found = record[name]
        counts = [
            found["passed"],
            len(found["failed"]),
            found["skipped"] - len(found["left_out"]),
            len(found["left_out"]),
        ]
        lines.append(f"| {run.shown} | {run.text} | " + " | ".join(str(count) for count in counts) + " |")
    of = sorted({f"torch {found['torch']}, {found['measured']}, commit {found['commit']}" for found in record.values()})
    return "\n".join(lines) + f"\n\nMeasured with {'; '.join(of)}.\n"


def left_out_text(record: dict[str, Any]) -> str:
    """Returns the tests that are left out of any run, by reason."""
    by_reason: dict[str, dict[str, None]] = {}
    for found in record.values():
        for test, reason in found["left_out"].items():
            by_reason.setdefault(reason, {})[test] = None
    lines = ["| test | why it is left out |", "|---|---|"]
    lines += [f"| {', '.join(f'`{test}`' for test in tests)} | {reason} |" for reason, tests in by_reason.items()]
    return "\n".join(lines) + "\n"


def contract_text() -> str:
    """Returns the backends that the contract is checked for, and the number of properties of each."""
    from contract_backends import EVERYWHERE
    from test_contract import ASKED, PROPERTIES

    lines = [
        "| backend | ranks | islands | tensors on | properties | what it lacks |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for place in EVERYWHERE:
        asked = sum(place in getattr(case, "values", case) for case in ASKED)
        lacks = len({lack.reason for rows in place.lacks.values() for lack in rows.values()
                     if lack.alone or len(place.layout) > 1})  # fmt: skip
        islands = len(set(place.layout)) if place.backend == "atoll" else "-"
        lines.append(
            f"| {place.backend.capitalize()} | {len(place.layout)} | {islands} | {place.device} | "
            f"{asked} of {len(PROPERTIES)} | {lacks or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def lacks_text(backend: str, device: str) -> str:
    """Returns the reasons of one backend, each once, in the order of the contract."""
    from contract_backends import EVERYWHERE

    places = [place for place in EVERYWHERE if (place.backend, place.device) == (backend, device)]
    reasons = {lack.reason: None for place in places for rows in place.lacks.values() for lack in rows.values()}
    return "".join(f"- {reason}\n" for reason in reasons)


def filled(page: str, record: dict[str, Any]) -> str:
    """Returns the page with the parts between its marks replaced."""
    parts = {
        "runs": runs_text(record),
        "left out": left_out_text(record),
        "contract": contract_text(),
        "devices lack": lacks_text("atoll", "sim"),
        "gloo lacks": lacks_text("gloo", "cpu"),
    }
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from what is recorded")
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"of {'; '.join(RUNS)} (default: all)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.modes if name not in RUNS]
    if unknown:
        parser.error(f"unknown mode {unknown[0]!r}: choose from {'; '.join(RUNS)}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in [] if arguments.page_only else arguments.modes or RUNS:
        record[name] = measured(RUNS[name])
        print(f"{name}: {record[name]['passed']} passed, {len(record[name]['failed'])} failed", flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(), record))


if __name__ == "__main__":
    main()
