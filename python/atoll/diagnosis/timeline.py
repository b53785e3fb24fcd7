# SPDX-License-Identifier: Apache-2.0
"""A job's collectives as a timeline for Perfetto and chrome://tracing."""

from collections.abc import Sequence
from typing import Any

from atoll.diagnosis.clocks import Clocks
from atoll.diagnosis.records import Event, Folder, Record
from atoll.diagnosis.waiting import Collective

Json = dict[str, Any]


def timeline(folder: Folder, found: Sequence[Collective], clocks: Clocks) -> Json:
    """Returns a process for each rank, a track for each of its groups, and arrows from the rank that came last to those
    that waited."""
    begin = min(
        (clocks.common(record.rank, event.issued) for record in folder.records for event in record.events), default=0
    )
    events: list[Json] = []
    tracks = {id: track for track, id in enumerate(folder.groups(), start=1)}
    for rank in sorted({record.rank for record in folder.records}):
        hosts = {record.host for record in folder.records if record.rank == rank}
        events.append(_label("process_name", rank, 0, f"rank {rank} ({', '.join(sorted(hosts))})"))
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    for record in folder.records:
        events.append(_label("thread_name", record.rank, tracks[record.id], f"group {record.group}"))
        events += [_slice(record, event, tracks[record.id], clocks, begin) for event in record.events]
    for number, one in enumerate(found):
        events += _arrows(one, tracks[one.id], number, begin)
    errors = {str(rank): clocks.error(rank) for rank in sorted({record.rank for record in folder.records})}
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"begin_us": begin, "clock": f"rank {clocks.reference}'s", "clock_error_us": errors},
    }


def _label(name: str, rank: int, track: int, text: str) -> Json:
    return {"ph": "M", "name": name, "pid": rank, "tid": track, "args": {"name": text}}


def _slice(record: Record, event: Event, track: int, clocks: Clocks, begin: int) -> Json:
    started = event.started or event.issued
    ended = max(started, event.finished or record.written)
    finished = event.state == "completed"
    return {
        "ph": "X",
        "name": event.label + ("" if finished else f" ({event.state})"),
        "cat": "collective",
        "pid": record.rank,
        "tid": track,
        "ts": clocks.common(record.rank, started) - begin,
        "dur": ended - started,
        "args": {
            "sequence": event.sequence,
            "part": event.part,
            "bytes": event.bytes,
            "dtype": event.dtype,
            "reduce_op": event.reduce_op,
            "root": event.root,
            "state": event.state,
            "called_ms_before": (started - event.issued) / 1000,
        },
    }


def _arrows(one: Collective, track: int, number: int, begin: int) -> list[Json]:
    """Returns arrows from the last awaited rank to the ends of those that came earlier."""
    came = [rank for rank in one.awaited() if rank in one.called]
    if not came or len(one.called) < 2:
        return []
    last = max(came, key=lambda rank: one.called[rank])
    arrows: list[Json] = []
    for place, (rank, ended) in enumerate(sorted(one.finished.items())):
        if rank == last or one.called[rank] >= one.called[last] or rank not in one.waiting():
            continue
        common = {"name": "waited for", "cat": "waiting", "id": number * len(one.members) + place, "tid": track}
        arrows.append({"ph": "s", "pid": last, "ts": one.called[last] - begin, **common})
        arrows.append({"ph": "f", "bp": "e", "pid": rank, "ts": ended - begin, **common})
    return arrows
