# SPDX-License-Identifier: Apache-2.0
"""Runs programs one after the other, each under a time limit, and keeps a record that is on disk before the next one
begins."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "GPU_TRIAL_STEP"  # in the environment of a step's processes, so that detached ones can be found
TAIL_LINES = 15


@dataclass
class Outcome:
    """`state` is passed, failed, or timed out; `tail` the end of what was printed."""

    state: str
    seconds: float
    status: int | None
    tail: str


@dataclass
class Record:
    """The folder of one trial: results.jsonl, log.txt and summary.md. Other files are left as they are."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results.write_text("")
        self.log.write_text("")

    @property
    def results(self) -> Path:
        return self.folder / "results.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.md"

    def add(self, **row: Any) -> None:
        """Appends a row; it is on disk when this returns."""
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def note(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text.rstrip("\n") + "\n")

    def read(self) -> list[dict[str, Any]]:
        return read_rows(self.results)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns all rows of results.jsonl except an incomplete last one."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def run_limited(command: Sequence[str | Path], environment: Mapping[str, str], limit: float, log: Path) -> Outcome:
    """Runs a program whose output goes to the end of `log`. After `limit` seconds it is killed with every process that
    it started; what it leaves behind is killed as well."""
    mark = uuid.uuid4().hex
    words = [str(part) for part in command]
    begin = time.monotonic()
    with log.open("ab") as output:
        place = output.tell()
        process = subprocess.Popen(
            words, env={**environment, MARK: mark}, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            kill_all(process.pid, mark)
            process.wait()
    seconds = time.monotonic() - begin
    state = "timed out" if status is None else "failed" if status else "passed"
    return Outcome(state, seconds, status, tail_of(log, place))


def tail_of(log: Path, place: int) -> str:
    """Returns the last lines that were written after that position."""
    with log.open("rb") as file:
        file.seek(place)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip()][-TAIL_LINES:])


def kill_all(session: int, mark: str) -> None:
    """Ends the processes of the session, and those that carry the mark, until none is left."""
    for _ in range(100):
        found = [pid for pid in pids() if is_of(pid, session, mark)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def is_of(pid: int, session: int, mark: str) -> bool:
    """Returns whether a process that has not ended belongs to the step."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state == "Z" or pid == os.getpid():
            return False
        return int(rest[2]) == session or f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
