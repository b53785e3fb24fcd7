# SPDX-License-Identifier: Apache-2.0
"""The record of a session's inferences, for `atoll report`."""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from atoll.watching.run_record import RunFile, bucket_of

log = logging.getLogger("atoll.watch")

STATE_SECONDS = 1.0  # minimum time between two records of the link
TOTALS_EVERY = 100  # inferences
MAX_PICTURES = 16


class SessionRecord:
    """Writes a line for each inference; the assignment for each new division; the link once per second; and totals that
    stay correct when lines are thinned out. Raises ValueError if the folder cannot be used. A later error ends the
    record with one warning. Thread-safe."""

    def __init__(self, folder: str, about: Mapping[str, Any]) -> None:
        self._file: RunFile | None = RunFile(folder, "inference", about)
        self._lock = threading.RLock()  # a signal handler may close the record while a line is added
        self._process = os.getpid()
        self._looked = -math.inf
        self._pictures: set[str] = set()
        self._counts: dict[str, float] = dict.fromkeys(
            ("inferences", "missed", "guarded", "up_bytes", "down_bytes", "joules"), 0
        )
        self._origins: dict[str, int] = {}
        self._latencies: dict[int, int] = {}

    @property
    def wants_picture(self) -> bool:
        return self._file is not None and len(self._pictures) < MAX_PICTURES

    def add(self, facts: Mapping[str, Any], picture: str, report: Callable[[], Mapping[str, Any]]) -> None:
        """Adds one inference. `facts` are the fields of Inference; `report` returns the session's statistics so far."""
        with self._lock:
            self._try(lambda file: self._add(file, facts, picture, report))

    def close(self, report: Callable[[], Mapping[str, Any]]) -> None:
        with self._lock:
            if os.getpid() != self._process:
                return
            self._try(lambda file: self._end(file, report))
            self._file = None

    def _try(self, write: Callable[[RunFile], None]) -> None:
        if self._file is None:
            return
        try:
            write(self._file)
        except Exception as error:
            log.warning("the record of the session ends, the session continues: %s", error)
            self._file = None

    def _add(
        self, file: RunFile, facts: Mapping[str, Any], picture: str, report: Callable[[], Mapping[str, Any]]
    ) -> None:  # fmt: skip
        file.add("inference", facts)
        counts = self._counts
        counts["inferences"] += 1
        counts["missed"] += bool(facts["missed"])
        counts["guarded"] += bool(facts["guard_used"])
        for name in ("up_bytes", "down_bytes", "joules"):
            counts[name] += facts[name]
        self._origins[facts["origin"]] = self._origins.get(facts["origin"], 0) + 1
        bucket = bucket_of(facts["seconds"])
        self._latencies[bucket] = self._latencies.get(bucket, 0) + 1
        if picture and picture not in self._pictures and self.wants_picture:
            self._pictures.add(picture)
            file.add("division", {"name": facts["plan"], **json.loads(picture)})
        if (now := time.monotonic()) - self._looked >= STATE_SECONDS:
            self._looked = now
            file.add("state", _state(report()))
        if counts["inferences"] % TOTALS_EVERY == 0:
            self._totals(file)

    def _totals(self, file: RunFile) -> None:
        latencies = {str(bucket): number for bucket, number in self._latencies.items()}
        file.add("totals", {**self._counts, "origins": self._origins, "latencies": latencies})

    def _end(self, file: RunFile, report: Callable[[], Mapping[str, Any]]) -> None:
        if self._counts["inferences"]:
            self._totals(file)
            if state := _state(report()):
                file.add("state", state, is_last=True)
        file.close()


def _state(report: Mapping[str, Any]) -> dict[str, Any]:
    names = ("policy", "local_seconds", "robot", "server", "plans", "up_rate", "down_rate", "latency", "expected_wait",
             "server_compute", "server_waited", "link_losses")  # fmt: skip
    return {name: report[name] for name in names if name in report}
