# SPDX-License-Identifier: Apache-2.0
"""Reads the files of `atoll.watching.run_record`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.watching.record import PlanEvent, WindowRecord
from atoll.watching.run_record import FORMAT, SUFFIX

Line = dict[str, Any]
HOW_TO_RECORD = (
    "a training records with atoll.training.Watch(record=FOLDER), an inference with Session(record=FOLDER), both with "
    "ATOLL_RUN_DIR=FOLDER in the environment"
)
_KINDS = ("training", "inference")


class RecordError(ValueError):
    """There is nothing to show; the message says why and what to do."""


@dataclass
class Record:
    """One file. `end` is None if the process was killed or is still running."""

    path: Path
    about: Line
    lines: list[Line]
    notes: list[str] = field(default_factory=list)  # problems with the file

    @property
    def kind(self) -> str:
        return str(self.about["kind"])

    @property
    def began(self) -> float:
        return float(self.about.get("time") or 0.0)

    @property
    def end(self) -> Line | None:
        return next((line for line in reversed(self.lines) if line["what"] == "end"), None)

    @property
    def last_time(self) -> float:
        return max((float(line.get("time") or 0.0) for line in self.lines), default=self.began)

    def of(self, what: str) -> list[Line]:
        return [line for line in self.lines if line["what"] == what]


@dataclass
class Training:
    """A record of a training, with parsed lines."""

    record: Record
    windows: list[WindowRecord]
    times: list[float]  # of the windows, seconds since 1970
    events: list[PlanEvent]

    @staticmethod
    def of(record: Record) -> "Training":
        windows, times = [], []
        devices = record.about.get("devices")
        for line in record.of("window"):
            try:
                windows.append(WindowRecord.from_json({"devices": devices, **line}))
            except TypeError:
                record.notes.append(f"{record.path.name} holds a window that lacks fields: it is ignored")
                continue
            times.append(float(line.get("time") or 0.0))
        events = [PlanEvent.from_json(line) for line in record.of("event") if {"step", "kind", "text"} <= set(line)]
        return Training(record, windows, times, events)


def read(path: Path) -> list[Record]:
    """Reads all records in a folder, or that of one file, oldest first. Raises RecordError if there are none, or this
    Atoll cannot read one."""
    if not path.exists():
        raise RecordError(f"{path} does not exist: {HOW_TO_RECORD}")
    files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    found = [record for file in files if (record := read_file(file)) is not None]
    if not found:
        others = [each.name for each in sorted(path.iterdir())[:3]] if path.is_dir() else [path.name]
        holds = f"it holds {', '.join(others)}" if others else "it is empty"
        raise RecordError(f"{path} has no record of a run ({holds}): {HOW_TO_RECORD}")
    return sorted(found, key=lambda record: record.began)


def read_file(path: Path) -> Record | None:
    """Reads a record; None for other files. Raises RecordError for a record of a newer Atoll."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from None
    texts = data.decode("utf-8", errors="replace").split("\n")
    torn = texts.pop()  # the rest after the last newline
    lines, damaged = [], 0
    for number, text in enumerate(texts):
        line = _line(text)
        if line is not None:
            lines.append(line)
        elif number == 0:
            return None
        else:
            damaged += 1
    if not lines:
        return None
    record = _of_lines(path, lines)
    if record is None:
        return None
    if torn:
        record.notes.append(f"the last line of {path.name} is truncated: it is ignored")
    if damaged:
        record.notes.append(f"{damaged} damaged line{'s' if damaged > 1 else ''} of {path.name} left out")
    return record


def _of_lines(path: Path, lines: list[Line]) -> Record | None:
    first = lines[0]
    if first["what"] in ("window", "event"):  # from Watch(json_lines=...), which writes no first line about the file
        windows = [line for line in lines if line["what"] == "window"]
        devices = windows[0].get("devices") if windows else []
        about = {"what": "run", "kind": "training", "time": first.get("time"), "devices": devices, "host": ""}
        return Record(path, about, lines)
    if first["what"] != "run" or not isinstance(first.get("format"), int):
        return None
    if first["format"] > FORMAT:
        raise RecordError(
            f"{path} was written by Atoll {first.get('atoll', '?')}, in format {first['format']}, but this one reads "
            f"up to {FORMAT}: install that Atoll or a newer one"
        )
    if first.get("kind") not in _KINDS:
        return None
    return Record(path, first, lines[1:])


def _line(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("what"), str) else None
