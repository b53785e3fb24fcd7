# SPDX-License-Identifier: Apache-2.0
"""Tries Atoll with each release of PyTorch in releases.toml: docs/results/versions.md.

Each release gets an environment under build/matrix, with a Python of this machine. libatoll is the one of `make setup`;
the glue is built for each release into its wheel, which is installed, and a selection of the tests runs with it. A
release that could not be installed, or that has no Python here, is named with the reason."""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wheel
from common import CPUS, ROOT, commit, fail, say
from environments import FOLDER, LIBRARY, installed, interpreter, run
from releases import Release, releases

RECORD = ROOT / "docs/results/versions.json"
PAGE = ROOT / "docs/results/versions.md"
SELECTION = (
    "test_backend_collectives.py", "test_newer_calls.py", "test_backend_groups.py", "test_mixed_groups.py",
    "test_library_order.py", "clients", "uneven/test_loader.py", "uneven/test_leaves_nothing.py",
    "faults/test_refusals.py", "infer/test_session.py", "infer/test_models_on_devices.py", "infer/test_export.py",
)  # fmt: skip
SELECTION_LIMIT = 1200
UNTRIED = ("not tried yet", "not tried yet by `make matrix`; `make test` is with this one")


def tested(python: Path, log: Path) -> dict[str, Any]:
    """Runs the selection of tests; returns its counts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATOLL_", "VIRTUAL_ENV"))}
    environment = {**kept, "PATH": f"{python.parent}:{kept['PATH']}"}
    environment.pop("PYTHONPATH", None)
    words = [python, "-m", "pytest", "-q", "--numprocesses", str(max(2, CPUS // 2)), "-p", "no:cacheprovider"]
    begin = time.monotonic()
    status = run([*words, *(f"tests/python/{name}" for name in SELECTION)], log, environment, SELECTION_LIMIT)
    text = log.read_text(errors="replace")
    counts = {
        kind: int(count)
        for count, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", text.splitlines()[-1])
    }
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)))
    return {"status": status, "seconds": round(time.monotonic() - begin), "counts": counts, "failed": failed}


def tried(release: Release, wanted: str = "") -> dict[str, Any]:
    """Tries one release; returns its row of the record."""
    row: dict[str, Any] = {"torch": release.torch, "pythons": list(release.pythons), "python": None}
    found = interpreter(release, wanted)
    if found is None:
        return row | {"why": f"no Python {wanted or ' or '.join(release.pythons)} is here"}
    row["python"] = found[1]
    log = FOLDER / f"{release.torch}-py{found[1]}.log"
    log.unlink(missing_ok=True)
    say(f"torch {release.torch}, Python {row['python']}: installing")
    python = installed(release, found, log)
    if python is None:
        return row | {"why": f"pip could not install it: {last_line(log)}"}
    say(f"torch {release.torch}: building its wheel")
    begin, is_first = os.times(), not wheel.build_folder(python).exists()
    try:
        with tempfile.TemporaryDirectory(prefix="atoll-matrix-") as work:
            made = wheel.wheel_in(Path(work), ROOT, release, python, log=log)
            if run([python, "-m", "pip", "install", "--no-deps", "--force-reinstall", made], log) != 0:
                return row | {"why": f"pip could not install the wheel: {last_line(log)}"}
    except SystemExit as error:
        return row | {"why": f"the wheel could not be built: {str(error).splitlines()[-1][:200]}"}
    end = os.times()
    if is_first:
        row["built"] = round(end.children_user + end.children_system - begin.children_user - begin.children_system)
    say(f"torch {release.torch}: tests")
    return row | tested(python, log)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line] or ["?"]
    return lines[-1][:200]


def verdict(row: dict[str, Any]) -> str:
    if "why" in row:
        return f"not run: {row['why']}"
    counts = row["counts"]
    bad = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    text = f"{counts.get('passed', 0)} passed" + (f", **{bad} failed**" if bad else "")
    return text if bad or row["status"] == 0 else f"{text}, **ended with status {row['status']}**"


HEAD = """# With each release of PyTorch

Written by `make matrix`: for each release in `releases.toml` a wheel was made, with the glue to that release beside one
`libatoll`, and installed; a selection of the tests ran with it: collectives, groups, simulated devices beside CPUs,
PyTorch's own clients (DDP, FSDP, DTensor, pipelining, compile, checkpoints), the data loader, refusals, split sessions,
export.

| torch | Python | not run, on PyPI | glue, s of processor time | tests | s |
|---|---|---|---:|---|---:|"""


def order(row: dict[str, Any]) -> list[int]:
    return [int(part) for part in f"{row['torch']}.{row['python'] or 0}".split(".")]


def page(record: dict[str, Any]) -> str:
    lines = [HEAD]
    known = {row["torch"] for row in record["rows"]}
    untried = [
        {"torch": release.torch, "pythons": list(release.pythons), "python": None, "why": UNTRIED[release.is_setup]}
        for release in releases()
        if release.torch not in known
    ]
    run = {(row["torch"], row["python"]) for row in record["rows"]}
    for row in sorted([*record["rows"], *untried], key=order):
        others = ", ".join(name for name in row["pythons"] if (row["torch"], name) not in run)
        cells = [
            row["torch"],
            row["python"] or "-",
            others,
            row.get("built", "-"),
            verdict(row),
            row.get("seconds", "-"),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    failed = [f"- torch {row['torch']}: `{name}`" for row in record["rows"] for name in row.get("failed", [])]
    lines += ["", "What failed:", "", *failed] if failed else []
    runs = sorted({f"{row['when']} at {row['commit']}" for row in record["rows"]})
    return "\n".join([*lines, "", f"Run on {', '.join(runs)}: {record['machine']}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="only these releases; the recorded rows of others are kept")
    parser.add_argument("--python", default="", metavar="3.14", help="with this Python, which must be installed")
    options = parser.parse_args()
    only = options.only
    table = releases()
    unknown = set(only or ()) - {release.torch for release in table}
    if unknown:
        raise fail(
            f"releases.toml has no torch {', '.join(sorted(unknown))}: it has {', '.join(r.torch for r in table)}"
        )
    if not LIBRARY.is_file():
        raise fail(f"{LIBRARY} is missing: make setup")
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(RECORD.read_text())["rows"] if RECORD.is_file() else []
    for release in table:
        if not only or release.torch in only:
            row = {"when": datetime.now(UTC).date().isoformat(), "commit": commit(), **tried(release, options.python)}
            say(f"torch {release.torch}: {verdict(row)}")
            rows = [
                old
                for old in rows
                if (old["torch"], old["python"]) not in ((release.torch, row["python"]), (release.torch, None))
            ]
            rows.append(row)
    rows.sort(key=order)
    machine = f"{CPUS} cores, Linux"
    record = {"machine": machine, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record))
    bad = [f"{row['torch']} and Python {row['python']}" for row in rows if "why" not in row and row["status"] != 0]
    say(f"matrix: FAILED with torch {', '.join(bad)}" if bad else f"matrix: good, {PAGE.relative_to(ROOT)} is written")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
