# SPDX-License-Identifier: Apache-2.0
"""Runs bench/device_pair.py, which has a device and a CPU as two stages of a pipeline and sends messages between them
in the device's memory over UCX, and adds what it prints to the record."""

import os
import subprocess
import sys

import trying

PROGRAM = trying.ROOT / "bench/device_pair.py"


def run(trial: trying.Trial) -> str:
    """Returns what the program prints; its errors go to the log."""
    command = [sys.executable, "-m", "atoll.cli", "run", "--island", f"gpu:1,device={trial.device}"]
    command += ["--island", "cpu:1,device=cpu", str(PROGRAM), *(["--quick"] if trial.quick else [])]
    environment = {**os.environ, "ATOLL_TRANSPORT": "ucx", "UCX_LOG_LEVEL": "error"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        raise RuntimeError(f"bench/device_pair.py ended with status {done.returncode}; its message is in the log")
    return done.stdout


def rows_of(text: str) -> list[dict[str, str]]:
    """Returns the rows of all its tables, by title."""
    rows: list[dict[str, str]] = []
    titles: list[str] = []
    for line in text.splitlines():
        start, line = line.find("|"), line.rstrip()
        if start < 0 or not line.endswith("|"):
            titles = []
            continue
        cells = [cell.strip() for cell in line[start:].strip("|").split("|")]
        if not titles:
            titles = cells
        elif not set("".join(cells)) <= set("-:"):
            rows.append(dict(zip(titles, cells, strict=False)))
    return rows


def main() -> None:
    trial, _ = trying.begin(__doc__)
    text = trial.check("bench/device_pair.py", lambda: run(trial))
    if text:
        for row in rows_of(text):
            trial.add(", ".join(f"{title}: {cell}" for title, cell in row.items()), row=row)
        for line in text.splitlines():
            if "Messages of the group" in line:
                trial.add(line[line.index("Messages") :])
    trial.end()


if __name__ == "__main__":
    main()
