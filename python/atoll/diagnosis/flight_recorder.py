# SPDX-License-Identifier: Apache-2.0
"""Writes a job's records in the format of PyTorch's flight recorder, for its analyser (`torchfrtrace`)."""

import pickle
from pathlib import Path
from typing import Any

from atoll.diagnosis.records import Event, Folder, Record

PREFIX = "atoll_trace_"
VERSION = "2.10"
# The analyser knows a fixed list of libraries. It compares sizes only of operations whose sizes must be equal.
_LIBRARY = "gloo"
_STATES = {"issued": "scheduled", "started": "started", "completed": "completed", "failed": "started"}
_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
_DTYPES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2", "int8": "Char", "int16": "Short", "int32": "Int",
    "int64": "Long", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


Numbers = dict[tuple[str, tuple[int, int]], int]
"""Numbers by a group's id and a collective's place in it."""


def write(folder: Folder, out: Path) -> list[Path]:
    """Writes one file for each rank that left a record. Operations that some rank of the group has already dropped are
    left out on all ranks, because the analyser matches them from the first one on."""
    out.mkdir(parents=True, exist_ok=True)
    begins = {
        id: max(record.events[0].place if record.events else (0, 0) for record in records)
        for id, records in folder.groups().items()
    }
    sizes, numbers = _sizes(folder), _numbers(folder)
    written = []
    for rank in sorted({record.rank for record in folder.records}):
        records = [record for record in folder.records if record.rank == rank]
        path = out / f"{PREFIX}{rank}"
        path.write_bytes(pickle.dumps(_dump(records, begins, sizes, numbers)))
        written.append(path)
    return written


def _numbers(folder: Folder) -> Numbers:
    """Numbers each group's collectives in their order, from 1."""
    numbers: Numbers = {}
    for id, records in folder.groups().items():
        places = sorted({event.place for record in records for event in record.events})
        numbers |= {(id, place): number for number, place in enumerate(places, 1)}
    return numbers


def _sizes(folder: Folder) -> Numbers:
    """Returns the largest part of each collective on any rank: parts of one may differ, which is not an error."""
    largest: Numbers = {}
    for record in folder.records:
        for event in record.events:
            if event.operation in ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"):
                key = (record.id, event.place)
                largest[key] = max(largest.get(key, 0), event.bytes)
    return largest


def _dump(
    records: list[Record], begins: dict[str, tuple[int, int]], sizes: Numbers, numbers: Numbers
) -> dict[str, Any]:
    calls = [(record, event) for record in records for event in record.events if event.place >= begins[record.id]]
    calls.sort(key=lambda call: (call[1].issued, call[0].id, call[1].place))
    return {
        "version": VERSION,
        "entries": [
            _entry(
                number,
                numbers[record.id, event.place],
                record,
                event,
                sizes.get((record.id, event.place), event.bytes),
            )
            for number, (record, event) in enumerate(calls)
        ],
        "pg_config": {
            record.id: {"name": record.id, "desc": record.group, "ranks": str(list(record.members))}
            for record in records
        },
        "pg_status": {},
        "comm_lib_version": "atoll",
    }


def _entry(number: int, in_group: int, record: Record, event: Event, bytes: int) -> dict[str, Any]:
    elements = bytes // _ITEM_BYTES.get(event.dtype, 1)
    inputs, outputs = [[elements]], [[elements]]
    if event.operation == "all_gather":
        outputs = [[elements * len(record.members)]]
    elif event.operation == "reduce_scatter":
        outputs = [[elements // len(record.members)]]
        inputs = [[outputs[0][0] * len(record.members)]]
    dtype = _DTYPES.get(event.dtype, event.dtype)
    return {
        "record_id": number,
        "pg_id": record.id,
        "process_group": (record.id, record.group),
        "collective_seq_id": in_group,
        "p2p_seq_id": 0,
        "op_id": in_group,
        "profiling_name": f"{_LIBRARY}:{event.operation}",
        "time_created_ns": event.issued * 1000,
        "time_discovered_started_ns": event.started * 1000 or None,
        "time_discovered_completed_ns": event.finished * 1000 or None,
        "duration_ms": (event.finished - event.started) / 1000 if event.finished and event.started else None,
        "input_sizes": inputs,
        "input_dtypes": [dtype],
        "output_sizes": outputs,
        "output_dtypes": [dtype],
        "state": _STATES[event.state],
        "timeout_ms": 0,
        "is_p2p": False,
        "retired": event.state == "completed",
        "frames": [],
    }
