# SPDX-License-Identifier: Apache-2.0
"""Watchers end with their owner and with the process, but not in a forked one."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from atoll.watching.options import Watch
from atoll.watching.prometheus import Prometheus
from atoll.watching.watcher import Watchers
from forking import Program
from test_watching import RECORD, open_files, scraped

TIMEOUT_S = 60


def made(**options: Any) -> Watchers:
    return Watchers(Watch(live=False, **options), rank=0)


def test_they_end_with_their_last_reference(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    first = made(json_lines=path, prometheus=0)
    port = first.list[1].port
    assert path in open_files()
    del first
    assert path not in open_files()
    made(prometheus=port).close()


def test_the_port_that_another_watcher_has() -> None:
    first = made(prometheus=0)
    with pytest.raises(ValueError, match=r"cannot listen: .*; another atoll.DataLoader of this process may use this"):
        made(prometheus=first.list[0].port)
    first.close()


SHOWS_ITS_LAST_RECORD = """
from atoll.watching.options import Watch
from atoll.watching.record import WindowRecord
from atoll.watching.watcher import Watchers

kept = Watchers(Watch(live=True), rank=0)
for step in (50, 100):
    kept.window(WindowRecord(step, 0, "", ("cpu",), (8,), (0.0,), (0.0,), 0.0))
print("done", flush=True)
"""


def test_they_end_with_the_process(tmp_path: Path) -> None:
    program = Program(SHOWS_ITS_LAST_RECORD, dict(os.environ), tmp_path)
    try:
        done = program.finish(time.monotonic() + TIMEOUT_S)
    finally:
        program.kill()
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    shown = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert shown == ["step 50", "step 100"]


def test_a_forked_process_leaves_them_to_its_parent() -> None:
    kept = made(prometheus=0)
    port = kept.list[0].port
    child = os.fork()
    if child == 0:
        del kept
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kept.window(RECORD)
    assert scraped(port)["atoll_step"] == RECORD.step
    kept.close()


def test_a_server_that_is_closed_in_its_own_thread() -> None:
    """Python may collect garbage in any thread."""
    watcher = Prometheus(0)
    own = watcher._exporter._server

    def close_once() -> None:
        del own.service_actions
        watcher.close()

    own.service_actions = close_once  # called by the serving thread
    watcher._exporter._thread.join(TIMEOUT_S)
    assert not watcher._exporter._thread.is_alive()
    for closing in [thread for thread in threading.enumerate() if thread.name == "atoll-watch"]:
        closing.join(TIMEOUT_S)
    Prometheus(watcher.port).close()
