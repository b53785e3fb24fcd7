# SPDX-License-Identifier: Apache-2.0
"""Tries Atoll with each release of PyTorch in releases.toml: docs/results/versions.md.

Each gets an environment under build/matrix, with a Python that is found here. libatoll is the one of `make setup`; the
glue is built for each release, and a selection of the tests runs with it. What could not be installed or has no Python
here is named with the reason."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import BUILD, CPUS, ROOT, commit, fail, say
from releases import Release, releases

FOLDER = BUILD / "matrix"
LIBRARY = BUILD / "release/src/atoll/libatoll.so"
RECORD = ROOT / "docs/results/versions.json"
PAGE = ROOT / "docs/results/versions.md"
NEEDED = {
    "numpy", "typer", "rich", "plotly", "jinja2", "tensorboard", "prometheus_client", "scikit-build-core", "cmake",
    "ninja", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest", "safetensors", "scikit-learn",
    "transformers",
}  # fmt: skip
SELECTION = (
    "test_backend_collectives.py", "test_newer_calls.py", "test_backend_groups.py", "test_mixed_groups.py",
    "test_library_order.py", "clients", "uneven/test_loader.py", "uneven/test_leaves_nothing.py",
    "faults/test_refusals.py", "infer/test_session.py", "infer/test_models_on_devices.py", "infer/test_export.py",
)  # fmt: skip
SELECTION_LIMIT = 1200
UNTRIED = ("not tried yet", "not tried yet by `make matrix`; `make test` is with this one")
NOTHING_BUILT = 5  # seconds of processor time in which nothing was compiled
BUILDING = "import matrix, pathlib, sys; matrix.build_here(pathlib.Path(sys.argv[1]))"


def interpreter(release: Release) -> tuple[str, str] | None:
    """A Python here that has a wheel of the release, and its version: the table's choice, that of this run, any."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [name for name in (release.tried, own, *release.pythons) if name in release.pythons]
    return next(((found, name) for name in wanted if (found := python_of(name))), None)


def python_of(name: str) -> str:
    """The path of a Python of this version that starts; "" where there is none."""
    own = Path(sys.base_prefix, "bin", f"python{name}")
    others = sorted(Path(sys.base_prefix).parent.glob(f"{name}.*/bin/python{name}"))
    for path in [str(own) if own.exists() else None, shutil.which(f"python{name}"), *map(str, others)]:
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return ""


def pins() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in NEEDED]


def run(words: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None, limit: float = 3600) -> int:
    """The exit status; output goes to the log."""
    with log.open("ab") as output:
        try:
            return subprocess.run([str(word) for word in words], cwd=ROOT, env=environment, stdout=output,
                                  stderr=subprocess.STDOUT, check=False, timeout=limit).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {limit} s\n".encode())
            return 124


def installed(release: Release, python: str, log: Path) -> Path | None:
    """The environment's Python; None where pip cannot make it."""
    folder = FOLDER / release.torch
    own = folder / "bin/python"
    stamp = folder / "installed"
    wanted = "\n".join([f"torch=={release.torch}", *pins()])
    if stamp.is_file() and stamp.read_text() == wanted:
        return own
    if run([python, "-m", "venv", "--clear", folder], log) != 0:
        return None
    words = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *wanted.splitlines()]
    # A machine may have a limit of its own on what is installed; the table says which release it is.
    if run(words, log) != 0 and run(words, log, {**os.environ, "PIP_CONFIG_FILE": os.devnull}) != 0:
        return None
    stamp.write_text(wanted)
    return own


def build_here(log: Path) -> None:
    """For the Python that runs this; says where, and what it took, as JSON."""
    import gpu_build

    ready = gpu_build.build(log, LIBRARY, FOLDER)
    print(json.dumps({"paths": [str(path) for path in ready.paths], "seconds": round(ready.cpu_seconds)}))


def tested(python: Path, paths: Sequence[str], log: Path) -> dict[str, Any]:
    """The counts of the selection."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATOLL_", "VIRTUAL_ENV"))}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), "PATH": f"{python.parent}:{kept['PATH']}"}
    # Programs of an installed Atoll find torch beside it, which it is not here.
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, python.parents[1].glob("lib/*/site-packages/torch/lib")))
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


def tried(release: Release) -> dict[str, Any]:
    """A row of the record."""
    row: dict[str, Any] = {"torch": release.torch, "pythons": list(release.pythons), "python": None}
    found = interpreter(release)
    if found is None:
        return row | {"why": f"no Python {' or '.join(release.pythons)} is here"}
    path, row["python"] = found
    log = FOLDER / f"{release.torch}.log"
    log.unlink(missing_ok=True)
    say(f"torch {release.torch}, Python {row['python']}: installing")
    python = installed(release, path, log)
    if python is None:
        return row | {"why": f"pip could not install it: {last_line(log)}"}
    say(f"torch {release.torch}: building the glue")
    done = subprocess.run(
        [python, "-c", BUILDING, log], cwd=ROOT / "scripts", capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return row | {"why": f"the glue could not be built: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"}
    built = json.loads(done.stdout.splitlines()[-1])
    say(f"torch {release.torch}: tests")
    if built["seconds"] > NOTHING_BUILT:
        row["built"] = built["seconds"]
    return row | tested(python, built["paths"], log)


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

Written by `make matrix`: for each release in `releases.toml` the glue was built beside one `libatoll`, and a selection
of the tests ran with it: collectives, groups, simulated devices beside CPUs, PyTorch's own clients (DDP, FSDP, DTensor,
pipelining, compile, checkpoints), the data loader, refusals, split sessions, export.

| torch | Python | other Pythons on PyPI | glue, s of processor time | tests | s |
|---|---|---|---:|---|---:|"""


def page(record: dict[str, Any]) -> str:
    lines = [HEAD]
    known = {row["torch"] for row in record["rows"]}
    untried = [
        {"torch": release.torch, "pythons": list(release.pythons), "python": None, "why": UNTRIED[release.is_setup]}
        for release in releases()
        if release.torch not in known
    ]
    for row in sorted([*record["rows"], *untried], key=lambda row: [int(part) for part in row["torch"].split(".")]):
        others = ", ".join(name for name in row["pythons"] if name != row["python"])
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
    lines += ["", "Other Pythons have not run.", *(["", "What failed:", "", *failed] if failed else [])]
    runs = sorted({f"{row['when']} at {row['commit']}" for row in record["rows"]})
    return "\n".join([*lines, "", f"Run on {', '.join(runs)}: {record['machine']}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these releases; rows of others stay as they are recorded")
    only = parser.parse_args().only
    table = releases()
    unknown = set(only or ()) - {release.torch for release in table}
    if unknown:
        raise fail(
            f"releases.toml has no torch {', '.join(sorted(unknown))}: it has {', '.join(r.torch for r in table)}"
        )
    if not LIBRARY.is_file():
        raise fail(f"{LIBRARY} is missing: make setup")
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = {row["torch"]: row for row in json.loads(RECORD.read_text())["rows"]} if RECORD.is_file() else {}
    for release in table:
        if not only or release.torch in only:
            known[release.torch] = {"when": datetime.now(UTC).date().isoformat(), "commit": commit(), **tried(release)}
            say(f"torch {release.torch}: {verdict(known[release.torch])}")
    rows = [known[release.torch] for release in table if release.torch in known]
    machine = f"{CPUS} cores, Linux"
    record = {"machine": machine, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record))
    bad = [row["torch"] for row in rows if "why" not in row and row["status"] != 0]
    say(f"matrix: FAILED with torch {', '.join(bad)}" if bad else f"matrix: good, {PAGE.relative_to(ROOT)} is written")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
