# SPDX-License-Identifier: Apache-2.0
"""The files in which ranks record their last operations."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNFINISHED = {"issued", "started", "failed"}
_LIST_OF_MEMBERS = re.compile(r"rank (\d+)")


@dataclass(frozen=True)
class Event:
    """One collective on one rank. Times are microseconds since the epoch by that rank's clock, 0 for "not yet"."""

    operation: str
    sequence: int
    """The sequence number of the operation in its group."""
    part: int
    """The number of the collective in its operation, which may consist of several, such as chunks of a large tensor."""
    reduce_op: str
    dtype: str
    bytes: int
    root: int
    state: str
    issued: int
    started: int
    finished: int

    @property
    def place(self) -> tuple[int, int]:
        """The place in the order of the group's collectives."""
        return self.sequence, self.part

    @property
    def label(self) -> str:
        """The name in messages: "all_reduce #5", "all_reduce #5.2" for a later part."""
        return f"{self.operation} #{self.sequence}" + (f".{self.part}" if self.part else "")


@dataclass(frozen=True)
class Sample:
    """At time `at` of this process's clock, the clock of the group's first rank was ahead by `offset`, within
    `error`."""

    at: int
    offset: int
    error: int


@dataclass(frozen=True)
class Record:
    """One rank's record of one group. Ranks and members are numbered as in the job."""

    path: Path
    job: str
    attempt: int
    group: str
    id: str
    rank: int
    members: tuple[int, ...]
    host: str
    clock: str
    """Equal for processes that read the same clock."""
    written: int
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    error: str


@dataclass(frozen=True)
class Folder:
    """The records of one job, one for each rank and group, and the problems with other files."""

    records: list[Record]
    problems: list[str]

    def groups(self) -> dict[str, list[Record]]:
        """The records by the group's id, in order of group names, each list by rank."""
        found: dict[str, list[Record]] = {}
        for record in sorted(self.records, key=lambda record: (record.group, record.id, record.rank)):
            found.setdefault(record.id, []).append(record)
        return found


def read_folder(folder: Path) -> Folder:
    """Reads the latest attempt of the latest job among the files of `folder`. Truncated files and files of other jobs
    are reported as problems; raises ValueError if no record is left."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    records, problems = [], []
    for path in sorted(folder.glob("atoll-*.json")):
        try:
            records.append(_record(path, json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.name} is truncated or is not a record of Atoll: {type(error).__name__}: {error}")
    if not records:
        raise ValueError(f"{folder} has no files of Atoll (atoll-*.json)" + "".join(f"; {text}" for text in problems))
    latest = max(records, key=lambda record: record.written)
    newest = {record.attempt for record in records if record.job == latest.job}
    ours = [record for record in records if (record.job, record.attempt) == (latest.job, max(newest))]
    if len(ours) < len(records):
        problems.append(f"{len(records) - len(ours)} files of earlier jobs or attempts are left out")
    kept = {(record.id, record.rank): record for record in sorted(ours, key=lambda record: record.written)}
    chosen = Folder(list(kept.values()), problems)
    problems += _missing(chosen)
    return chosen


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns "rank 3", "ranks 0, 1, 2"."""
    numbers = sorted(ranks)
    shown = ", ".join(str(number) for number in numbers[:12])
    more = f" and {len(numbers) - 12} more" if len(numbers) > 12 else ""
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}{more}"


def _missing(folder: Folder) -> Iterable[str]:
    for records in folder.groups().values():
        absent = set(records[0].members) - {record.rank for record in records}
        if absent:
            yield f"{ranks_text(absent)} left no record of group {records[0].group}"


def _record(path: Path, content: dict[str, Any]) -> Record:
    if content["format"] != 2:
        raise ValueError(f"format is {content['format']}, must be 2")
    members = tuple(_number(name, place) for place, name in enumerate(content["members"]))
    error = content.get("error")
    return Record(
        path=path,
        job=str(content["job"]),
        attempt=int(content["attempt"]),
        group=str(content["group"]),
        id=str(content["id"]),
        rank=members[int(content["rank"])],
        members=members,
        host=str(content["process"]["host"]),
        clock=str(content["process"]["clock"]),
        written=int(content["written_us"]),
        samples=tuple(Sample(*(int(value) for value in sample)) for sample in content["clock"]),
        events=tuple(_event(event) for event in content["operations"]),
        error=f"{error['kind']}: {error['message']}" if error else "",
    )


def _number(name: str, place: int) -> int:
    match = _LIST_OF_MEMBERS.fullmatch(name)
    return int(match.group(1)) if match else place


def _event(event: dict[str, Any]) -> Event:
    fields: dict[str, Any] = {name: str(event[name]) for name in ("operation", "reduce_op", "dtype", "state")}
    fields |= {name: int(event[name]) for name in ("sequence", "bytes", "root")}
    fields |= {name: int(event[f"{name}_us"]) for name in ("issued", "started", "finished")}
    return Event(part=int(event.get("part", 0)), **fields)
