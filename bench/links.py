# SPDX-License-Identifier: Apache-2.0
"""Links of every kind between two ends on one host: UCX beside Atoll's own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import peers
from compare import spread
from results import Settings, say, table

TITLE = "links of every kind on one host: UCX beside our own"
ROUNDS = 7
# Each kind of link in link_bench.cpp, what it is, and the one of our own that it is compared with.
KINDS = {
    "LinkShm": ("shared memory", "LinkShm"),
    "LinkUcxMemory": ("UCX: posix, sysv, cma", "LinkShm"),
    "LinkTcp": ("TCP", "LinkTcp"),
    "LinkUcxNetwork": ("UCX: tcp", "LinkTcp"),
}
WHY = (
    "Why UCX is slower here: a frame over UCX passes the loop thread of each side, one wake-up each, because a "
    "UCX worker belongs to one thread, and it is copied once more, into a ring that stays registered, so that "
    "what a dead peer leaves undone touches no memory of the caller. The shared-memory link writes into the "
    "peer's ring from the caller's thread and wakes no thread while both sides are busy; the TCP link gives the "
    "caller's memory to the socket. That is why `auto` takes our own links on one host, and UCX only where it is "
    "asked for: for RDMA and device memory, which need hardware that this machine lacks."
)


def measure(settings: Settings) -> dict[str, Any]:
    """Runs all kinds in turn in every round, in a new process."""
    program = peers.cxx_program("atoll_bench")
    rounds = [_run(program, "0.01" if settings.quick else "0.4") for _ in range(settings.rounds(ROUNDS))]
    rows = [_row(kind, rounds) for kind in KINDS]
    for row in rows:
        say(f"{row['kind']}: {row['small_us']['median']:.2f} us, {row['large_gb_s']['median']:.2f} GB/s")
    return {"rows": rows}


def _run(program: Path, seconds: str) -> dict[str, float]:
    """Returns the microseconds of a small frame in one direction and the GB/s of large messages, by names such as
    "LinkShm small"."""
    command = [program, "--benchmark_filter=/Link", f"--benchmark_min_time={seconds}", "--benchmark_format=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with status {done.returncode}: {done.stderr.strip()}")
    found = {}
    for entry in json.loads(done.stdout)["benchmarks"]:
        size, kind = entry["name"].split("/")[:2]
        if entry.get("error_occurred"):
            raise RuntimeError(f"{kind}: {entry['error_message']} (scripts/setup.py --packages build installs UCX)")
        is_small = size == "small_frames"
        value = entry["one_way"] * 1e6 if is_small else entry["bytes_per_second"] * 1e-9
        found[f"{kind} {'small' if is_small else 'large'}"] = value
    return found


def _row(kind: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    title, own = KINDS[kind]
    return {
        "kind": title,
        "is_own": kind == own,
        "small_us": spread([each[f"{kind} small"] for each in rounds]),
        "small_of_own": spread([each[f"{own} small"] / each[f"{kind} small"] for each in rounds]),
        "large_gb_s": spread([each[f"{kind} large"] for each in rounds]),
        "large_of_own": spread([each[f"{kind} large"] / each[f"{own} large"] for each in rounds]),
        "rounds": [[each[f"{kind} small"], each[f"{kind} large"]] for each in rounds],
    }


def report(document: dict[str, Any]) -> str:
    def text(values: dict[str, float]) -> str:
        return f"{values['median']:.3g} ({values['p10']:.3g} to {values['p90']:.3g})"

    rows = []
    for row in document["rows"]:
        cells = [row["kind"]]
        for name in ("small", "large"):
            values = row["small_us" if name == "small" else "large_gb_s"]
            cells.append(text(values))
            own = row[f"{name}_of_own"]
            cells.append("" if row["is_own"] else text(own))
        rows.append(cells)
    titles = ["link", "64 bytes, one way (us)", "speed, of our own", "8 MiB (GB/s)", "rate, of our own"]
    return (
        "Two ends in one process, a thread and a loop each, one channel: half a round trip of a frame of 64 bytes, and "
        "messages of 8 MiB in one direction, cut into frames as collectives cut theirs. Every round runs all kinds in "
        "turn; ratios are of one round.\n\n" + table(titles, rows) + f"\n{WHY}\n"
    )
