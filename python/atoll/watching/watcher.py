# SPDX-License-Identifier: Apache-2.0
"""Watchers, which show records and events."""

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from atoll.watching.options import Watch
from atoll.watching.record import PlanEvent, WindowRecord

log = logging.getLogger("atoll.watch")


class Watcher(Protocol):
    """Shows records and events. May raise any exception; Watchers catches it."""

    def window(self, record: WindowRecord) -> None: ...
    def event(self, event: PlanEvent) -> None: ...
    def close(self) -> None: ...


def watchers(watch: Watch, about: Mapping[str, Any] | None = None) -> list[Watcher]:
    """Makes the watchers that `watch` requests; `about`: the run's description in a record. Raises ValueError if a file
    or a port cannot be opened, and ImportError if a package is missing; then none is left open."""
    made: list[Watcher] = []
    try:
        for make in _makers(watch, about or {}):
            made.append(make())
    except BaseException:
        for watcher in made:
            with contextlib.suppress(Exception):
                watcher.close()
        raise
    return made


def _makers(watch: Watch, about: Mapping[str, Any]) -> list[Callable[[], Watcher]]:
    """Returns the constructors of the requested watchers; the modules of others are not imported."""
    makers: list[Callable[[], Watcher]] = []
    if (path := watch.json_lines) is not None:
        from atoll.watching.json_lines import JsonLines

        makers.append(lambda: JsonLines(path))
    if (folder := watch.tensorboard) is not None:
        from atoll.watching.tensorboard import Board

        makers.append(lambda: Board(folder))
    if (port := watch.prometheus) is not None:
        from atoll.watching.prometheus import Prometheus

        makers.append(lambda: Prometheus(port))
    record = os.environ.get("ATOLL_RUN_DIR") if watch.record is None else watch.record
    if record:
        from atoll.watching.run_record import TrainingRecord

        makers.append(lambda: TrainingRecord(record, about))
    if watch.live is not False:
        from atoll.watching.live import is_terminal, live_line

        if watch.live or is_terminal():
            makers.append(live_line)
    return makers


class Watchers:
    """All watchers of one training; none on ranks other than 0. The constructor raises the errors of `watchers`. Other
    methods do not raise: a watcher that fails is closed, with one warning. All are closed when this object is garbage
    collected, at the latest when the process ends, but not by a forked process."""

    def __init__(self, watch: Watch, rank: int, about: Mapping[str, Any] | None = None) -> None:
        self.list = watchers(watch, about) if rank == 0 else []
        self._end = weakref.finalize(self, _end, self.list, os.getpid())

    def window(self, record: WindowRecord) -> None:
        _each(self.list, lambda watcher: watcher.window(record))

    def event(self, event: PlanEvent) -> None:
        _each(self.list, lambda watcher: watcher.event(event))

    def close(self) -> None:
        """Writes everything so far and closes. Later calls do nothing."""
        self._end()


def _end(of: list[Watcher], process: int) -> None:
    if os.getpid() != process:
        return
    _each(of, lambda watcher: watcher.close())
    of.clear()


def _each(of: list[Watcher], tell: Callable[[Watcher], None]) -> None:
    for watcher in list(of):
        try:
            tell(watcher)
        except Exception as error:
            of.remove(watcher)
            with contextlib.suppress(Exception):
                watcher.close()
            log.warning("%s stops, the training continues: %s", watcher, error)
