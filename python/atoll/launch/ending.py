# SPDX-License-Identifier: Apache-2.0
"""Ends the command within a bounded time after a signal, wherever its main thread is waiting."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from atoll.launch import LaunchError


def parse_signals(text: str) -> list[signal.Signals]:
    """The signals that `--signals-to-handle` names."""
    found = []
    for name in text.split(","):
        try:
            found.append(signal.Signals[name.strip()])
        except KeyError:
            raise LaunchError(
                f"--signals-to-handle: {name.strip()!r} is not a signal: write names such as SIGTERM,SIGINT"
            ) from None
    return found


@dataclass
class EndingOnSignal:
    """Inside the context each of `signals` raises SignalException in the main thread. On the first, another thread
    calls `tell(signal)`. If the body has not ended `limit_s()` seconds later, because the main thread is waiting in a
    library, that thread calls `last_resort()` and ends the process with status 128 plus the signal. Enter it on the
    main thread."""

    signals: Sequence[signal.Signals]
    tell: Callable[[signal.Signals], None]
    limit_s: Callable[[], float]
    last_resort: Callable[[], None]

    def __enter__(self) -> "EndingOnSignal":
        self._done = threading.Event()
        self._source, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._guard, name="atoll-ending", daemon=True)
        self._thread.start()
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._raise) for number in self.signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wake_before)
        self._done.set()
        os.close(self._wake)
        self._thread.join()
        os.close(self._source)

    def ignore_signals(self) -> None:
        """Ignores signals from here on; the time limit of an earlier signal still holds."""
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)

    @staticmethod
    def _raise(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number)
        raise SignalException(f"got {name.name}", sigval=name)

    def _tell_safely(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self.tell(signal.Signals(number))

    def _guard(self) -> None:
        while number := os.read(self._source, 1):
            if number[0] in self.signals:
                break
        else:
            return
        limit_s = self.limit_s()
        # This may block if the reader of the output has stopped reading.
        threading.Thread(target=self._tell_safely, args=(number[0],), name="atoll-tell", daemon=True).start()
        if not self._done.wait(limit_s):
            with contextlib.suppress(Exception):
                self.last_resort()
            os._exit(128 + number[0])
