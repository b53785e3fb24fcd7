# SPDX-License-Identifier: Apache-2.0
"""Writes records and events to a file, as one line of JSON each."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

from atoll.watching.record import PlanEvent, WindowRecord


class JsonLines:
    """Appends to the file. Each line holds "what" ("window" or "event"), "time" (seconds since 1970) and the fields,
    and is written at once."""

    def __init__(self, path: str, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        try:
            self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until `close`
        except OSError as error:
            raise ValueError(
                f"{self} cannot be written: {error.strerror}: give a file in a folder that exists"
            ) from None

    def __str__(self) -> str:
        return f"Watch(json_lines={self._path!r})"

    def window(self, record: WindowRecord) -> None:
        self._write("window", record.to_json())

    def event(self, event: PlanEvent) -> None:
        self._write("event", event.to_json())

    def close(self) -> None:
        self._file.close()

    def _write(self, what: str, fields: dict[str, Any]) -> None:
        line = {"what": what, "time": self._now(), **fields}
        self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Returns the value without infinities and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
