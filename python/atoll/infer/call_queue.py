# SPDX-License-Identifier: Apache-2.0
"""Calls that a thread makes one after the other, and that do not delay the end of the program."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
_Waiting = queue.SimpleQueue[_Call | None]  # None ends the thread


class CallQueue:
    """Makes calls on a daemon thread, in order. Python's executors make all calls that wait before a program may end;
    these end with it. The thread ends when the queue is cancelled, and when nothing refers to the queue."""

    def __init__(self, name: str) -> None:
        self._waiting: _Waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._waiting,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._waiting.put, None)

    def submit(self, call: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Returns a future of the call's result."""
        future: Future[Any] = Future()
        self._waiting.put((future, call, args))
        return future

    def cancel(self) -> None:
        """Cancels the calls that have not started. Later ones are never made."""
        with contextlib.suppress(queue.Empty):
            while True:
                waiting = self._waiting.get_nowait()
                if waiting is not None:
                    waiting[0].cancel()
        self._waiting.put(None)

    def join(self) -> None:
        """Waits for the running call of a cancelled queue, except inside of that call."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _work(waiting: _Waiting) -> None:
    while (item := waiting.get()) is not None:
        _make(*item)
        del item  # and what it refers to, while the thread waits


def _make(future: "Future[Any]", call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del future, call, args  # the traceback of an exception would keep them
