# SPDX-License-Identifier: Apache-2.0
"""The time before a user's first result: `import atoll`, and the first sum of a job of four ranks."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from compare import spread
from found import Document, Found
from results import ROOT, Settings, say, table

TITLE = "until a program imports, and until a job of four ranks has its first sum"
RANKS = 4
ROUNDS = 7
PROGRAM = ROOT / "bench" / "ready_job.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
JOBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torchrun, Gloo": ("gloo", TORCHRUN),
    "torchrun, Atoll": ("atoll", TORCHRUN),
    "atoll run, Atoll": ("atoll", ("-m", "atoll.cli", "run", "--island=a:2,device=cpu", "--island=b:2,device=cpu")),
}
IMPORTS = {
    "import torch": ("import torch", "0"),
    "import torch, atoll": ("import torch, atoll", "1"),
}
# Measured in a process that has PyTorch already: the difference between two processes would be lost in their variation.
AFTER = "import atoll, after import torch"


def measure(settings: Settings) -> dict[str, Any]:
    """Measures all rows in turn, each in new processes. The first round warms up the page cache and does not count."""
    imports: dict[str, list[float]] = {name: [] for name in IMPORTS}
    jobs: dict[str, list[float]] = {name: [] for name in JOBS}
    after: list[float] = []
    for _ in range(1 + settings.rounds(ROUNDS)):
        for name, (code, autoload) in IMPORTS.items():
            imports[name].append(_import_seconds(code, autoload))
        after.append(_import_seconds("import atoll", "0", "import torch"))
        for name, (backend, launcher) in JOBS.items():
            jobs[name].append(_job_seconds(backend, launcher))
    document: dict[str, Any] = {"imports": _rows(imports, "import torch"), "jobs": _rows(jobs, "torchrun, Gloo")}
    document["after"] = {"seconds": spread(after[1:]), "samples": after[1:]}
    say(f"{AFTER}: {document['after']['seconds']['median'] * 1e3:.1f} ms")
    for row in document["imports"] + document["jobs"]:
        say(f"{row['name']}: {row['seconds']['median']:.2f} s, {row['more']['median'] * 1e3:+.0f} ms")
    return document


def _rows(samples: dict[str, list[float]], reference: str) -> list[dict[str, Any]]:
    rows = []
    for name, seconds in samples.items():
        more = [each - other for each, other in zip(seconds, samples[reference], strict=True)]
        rows.append({"name": name, "seconds": spread(seconds[1:]), "more": spread(more[1:]), "samples": seconds[1:]})
    return rows


def _import_seconds(code: str, autoload: str, before: str = "") -> float:
    """Returns the seconds that the new process itself measures. `before` runs first and is not timed."""
    source = f"{before}\nimport time\nbegin = time.perf_counter()\n{code}\nprint(time.perf_counter() - begin)"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def _job_seconds(backend: str, launcher: tuple[str, ...]) -> float:
    """Returns the seconds from the command until the last rank has the sum."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.time()
    command = [sys.executable, *launcher, str(PROGRAM), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    ready = [float(seconds) for seconds in re.findall(r"ready at ([0-9.]+);", done.stdout)]  # ranks may share a line
    if len(ready) != RANKS:
        raise RuntimeError(f"{Path(PROGRAM).name} {backend}: {done.stdout}{done.stderr}")
    return max(ready) - begin


def _after(document: Document) -> str:
    """Returns the sentence about the import that was timed inside one process."""
    return "".join(
        f"In one process, `import atoll` after `import torch`, which does not import Atoll itself there: "
        f"{found.value:.1f} ms ({found.low:.1f} to {found.high:.1f}).\n\n"
        for found in after_torch(document)
    )


def more_than_gloo(name: str) -> Any:
    def found(document: Document) -> list[Found]:
        more = next(row["more"] for row in document["jobs"] if row["name"] == name)
        return [Found(more["median"], more["p10"], more["p90"], name)]

    return found


def after_torch(document: Document) -> list[Found]:
    if "after" not in document:  # the document is of an older version
        return []
    seconds = document["after"]["seconds"]
    return [Found(1e3 * seconds["median"], 1e3 * seconds["p10"], 1e3 * seconds["p90"], AFTER)]


def report(document: dict[str, Any]) -> str:
    def part(title: str, rows: list[dict[str, Any]], reference: str) -> str:
        cells = []
        for row in rows:
            seconds, more = row["seconds"], row["more"]
            cells.append(
                [
                    row["name"],
                    f"{seconds['median']:.2f} s ({seconds['p10']:.2f} to {seconds['p90']:.2f})",
                    f"{more['median'] * 1e3:+.0f} ms ({more['p10'] * 1e3:+.0f} to {more['p90'] * 1e3:+.0f})",
                ]
            )
        return table([title, "time", f"beyond {reference}"], cells)

    return (
        "Every row in new processes, in turns; the first round does not count. A job's time is from the command to the "
        f"first checked `all_reduce` on the last of {RANKS} ranks, which includes that each of them imports PyTorch on "
        "this machine's cores.\n\n"
        + part("import", document["imports"], "`import torch` alone")
        + "\n"
        + _after(document)
        + part("job", document["jobs"], "torchrun with Gloo, round by round")
    )
