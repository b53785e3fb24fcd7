# SPDX-License-Identifier: Apache-2.0
"""The record of a run: files in a folder from which `atoll report` makes a page.

Each process with something to record writes one file of lines of JSON. The first line describes the file ("what":
"run"), each line is flushed when it is written, and a truncated file can be read. A file that becomes too large is
thinned out: every other recurring line is removed, and later ones are written half as often."""

import json
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from atoll._build_info import VERSION
from atoll.watching.json_lines import finite
from atoll.watching.record import PlanEvent, WindowRecord

FORMAT = 1  # of lines; changes when their meaning changes
SUFFIX = ".run.jsonl"
MAX_BYTES = 16 << 20
THINNED = ("window", "inference", "state")
_PER_OCTAVE = 32  # buckets of latencies: neighbouring ones differ by 2.2 %
_numbers = count()


class RunFile:
    """One record file. It is created at once, so that an unusable folder raises ValueError at the start of the run."""

    def __init__(
        self, folder: str, kind: str, about: Mapping[str, Any], most_bytes: int = MAX_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._most, self._now = most_bytes, now
        began = now()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(began))
        self.path = Path(folder) / f"{kind}-{stamp}-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}{SUFFIX}"
        header = {
            "what": "run", "format": FORMAT, "kind": kind, "time": began, "host": socket.gethostname(),
            "pid": os.getpid(), "atoll": VERSION, "python": platform.python_version(),
            "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), **about,
        }  # fmt: skip
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("x", buffering=1, encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"the record of the run cannot be written to {folder}: {error.strerror}: set record= (or "
                f"ATOLL_RUN_DIR) to a folder that can be made"
            ) from None
        self._bytes, self._every, self._seen = 0, 1, dict.fromkeys(THINNED, 0)
        self._write(header)

    def add(self, what: str, fields: Mapping[str, Any], is_last: bool = False) -> None:
        """Writes a line. Raises OSError if it cannot be written. `is_last`: the line is not thinned out."""
        if what in self._seen and not is_last:
            self._seen[what] += 1
            if self._seen[what] % self._every:
                return
        self._write({"what": what, "time": self._now(), **fields})
        if self._bytes > self._most:
            self._thin()

    def close(self) -> None:
        """Records that the run has ended, not only its record."""
        if not self._file.closed:
            try:
                self._write({"what": "end", "time": self._now(), "error": _last_error()})
            finally:
                self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(finite(dict(line)), allow_nan=False, separators=(",", ":")) + "\n"
        self._file.write(text)
        self._bytes += len(text.encode())

    def _thin(self) -> None:
        """Thins the file out by replacing it as a whole: a reader sees either the old or the new file."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept, seen = [], dict.fromkeys(THINNED, 0)
        for line in lines:
            what = json.loads(line)["what"]
            if what in seen:
                seen[what] += 1
                if seen[what] % 2:
                    continue
            kept.append(line)
        if sum(map(len, kept)) > self._most * 3 // 4:  # of the other lines the newest stay
            kept = [kept[0], *kept[-(len(kept) // 2) :]]
        beside = self.path.with_suffix(".new")
        text = "\n".join(kept) + "\n"
        beside.write_text(text, encoding="utf-8")
        self._file.close()
        beside.replace(self.path)
        self._file = self.path.open("a", buffering=1, encoding="utf-8")
        self._bytes, self._every = len(text.encode()), 2 * self._every


def _last_error() -> str | None:
    """Returns the exception that ends the program, if any."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    return None if error is None else f"{type(error).__name__}: {error}"[:500]


class TrainingRecord:
    """Records windows and events of one training. The file is created with the first of them, so that a loader that
    only evaluates leaves none."""

    def __init__(self, folder: str, about: Mapping[str, Any]) -> None:
        self._folder, self._about = folder, dict(about)
        self._file: RunFile | None = None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self} cannot be written: {error.strerror}: give a folder that can be made") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{self} cannot be written: give a writable folder")

    def __str__(self) -> str:
        return f"Watch(record={self._folder!r})"

    def window(self, record: WindowRecord) -> None:
        fields = record.to_json()
        if record.devices == tuple(self._about.get("devices", ())):
            del fields["devices"]  # the first line has them
        self._opened().add("window", fields)

    def event(self, event: PlanEvent) -> None:
        self._opened().add("event", event.to_json())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> RunFile:
        if self._file is None:
            self._file = RunFile(self._folder, "training", self._about)
        return self._file


def bucket_of(seconds: float) -> int:
    """Returns the bucket that counts a latency, so that any number of them takes little memory; `latency_of` returns
    its middle."""
    return round(_PER_OCTAVE * math.log2(max(seconds, 1e-9)))


def latency_of(bucket: int) -> float:
    return float(2 ** (bucket / _PER_OCTAVE))
