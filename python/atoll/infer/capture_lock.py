# SPDX-License-Identifier: Apache-2.0
"""Makes captures take turns, because PyTorch's tracing has one state for the whole process."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.export._trace

from atoll.infer.errors import ExportError
from atoll.infer.export_errors import chain_of

_MAX_SECONDS = 60.0  # for a torch.export that is not a capture
_BETWEEN_LOOKS = 0.005
_DISTURBED = (
    "slot already occupied",
    "empty mode stack",
    "CURRENT_PATCHER is None",
    "_EXPORT_MODULE_HIERARCHY",
    "a fake tensor in the exported program",
)
_TRACE_FILE = torch.export._trace.__file__  # what every way into torch.export calls
_lock = threading.RLock()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Enters the context while no other thread captures or traces with torch.export. Raises ExportError if a
    torch.export does not end."""
    with _lock:
        wait_for_others()
        yield


def wait_for_others() -> None:
    """Waits until no other thread is in torch.export. One may start right afterwards."""
    end = time.monotonic() + _MAX_SECONDS
    while _is_any_thread_tracing():
        if time.monotonic() > end:
            raise ExportError(
                f"torch.export has been tracing for {_MAX_SECONDS:.0f} s, in this thread or another one, but it "
                f"traces one model at a time: make the session before or after it"
            )
        time.sleep(_BETWEEN_LOOKS)
    _clear_what_disturbed_traces_left()


def is_disturbed(error: BaseException) -> bool:
    """Returns whether an error of tracing was caused by a torch.export that another thread started in between."""
    return any(text in str(one) for one in chain_of(error) for text in _DISTURBED)


def is_disturbed_now(error: BaseException) -> bool:
    """The same after a trace, while another thread's trace may still run."""
    return is_disturbed(error) or _is_any_thread_tracing()


def _is_any_thread_tracing() -> bool:
    """Looks at the threads' stacks: torch.export enters and leaves its modes and its flags one after the other, so none
    of them is set for as long as it runs."""
    for frame in sys._current_frames().values():
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_filename == _TRACE_FILE:
                return True
            caller = caller.f_back
    return False


def _clear_what_disturbed_traces_left() -> None:
    """Restores what two traces at the same time leave set: each gives back what it found, which was the other's."""
    torch._C._dispatch_tls_set_dispatch_key_included(torch._C.DispatchKey.PreDispatch, False)
    compiler: Any = torch.compiler
    if getattr(compiler, "_is_exporting_flag", False):
        compiler._is_exporting_flag = compiler._is_compiling_flag = False


def _renew() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that does not exist in the child may hold the old one


os.register_at_fork(after_in_child=_renew)
