# SPDX-License-Identifier: Apache-2.0
"""Processes for tests, forked from a server that has imported PyTorch once and runs no threads: importing it takes
most of a short test's time."""

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["forked"])


def fork(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Any:
    """A started process that calls target(*arguments); the target must be importable by name."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    process = PROCESSES.Process(target=target, args=arguments, daemon=daemon)
    process.start()
    return process


def redirect(target: Path | Connection, *numbers: int) -> None:
    """Redirects these descriptors of this process to the end of the file, or to the pipe."""
    if isinstance(target, Path):
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    else:
        opened = os.dup(target.fileno())
        target.close()
    for number in numbers:
        os.dup2(opened, number)
    os.close(opened)


_ends_in_full = False


def leave(code: int) -> NoReturn:
    """Ends this process like a program that waits for its threads and calls its exit handlers. It does not shut the
    interpreter down, as after end_in_full(), because that takes longer than most tests."""
    if not _ends_in_full:
        threading._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or without a reader
            stream.flush()
    if _ends_in_full:
        ctypes.pythonapi.Py_Exit(code)
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def end_in_full() -> None:
    """Lets this process end like an ordinary program, which also collects what was imported before the fork. This is
    slow, and only for tests of that end."""
    global _ends_in_full
    _ends_in_full = True
    gc.unfreeze()


def run_source(source: str, environment: Mapping[str, str], out: Path | Connection, err: Path | None) -> None:
    """Does what `python -c source` does, in a process that has imported PyTorch. Errors go where `err` says, or to the
    output."""
    import torch.distributed as dist

    redirect(out, *((1,) if err else (1, 2)))
    if err:
        redirect(err, 2)
    os.environ.clear()
    os.environ.update(environment)
    dist.set_debug_level_from_env()
    tempfile.tempdir = None  # TMPDIR may have changed
    multiprocessing.process.current_process()._config["daemon"] = False  # it may have children
    leave(_status_of(source))


def _status_of(source: str) -> int:
    """Runs a program in this process's `__main__`; returns its exit status."""
    try:
        exec(compile(source, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        sys.excepthook(type(error), error, trace and trace.tb_next)
        return 1
    return 0


class Program:
    """A running `python -c source`, but forked, so that PyTorch is already imported."""

    def __init__(self, source: str, environment: Mapping[str, str], folder: Path) -> None:
        self.source, self.out, self.err = source, folder / "out", folder / "err"
        self.process = fork(run_source, source, dict(environment), self.out, self.err)

    def finish(self, deadline: float) -> subprocess.CompletedProcess[str]:
        """Returns the finished program with its output; `deadline` is a time of time.monotonic()."""
        timeout = max(0.1, deadline - time.monotonic())
        self.process.join(timeout)
        out, err = (path.read_text() if path.exists() else "" for path in (self.out, self.err))
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.source, timeout, out, err)
        return subprocess.CompletedProcess(self.source, self.process.exitcode, out, err)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Running:
    """Like `subprocess.Popen` of `python -c source` with a pipe for its output, but forked, so that PyTorch is already
    imported. Errors go to the file, or to the output where none is given."""

    def __init__(self, source: str, environment: Mapping[str, str], errors: Path | None = None) -> None:
        self.args = source
        reader, writer = PROCESSES.Pipe(duplex=False)
        self._process = fork(run_source, source, dict(environment), writer, errors)
        writer.close()
        self.pid: int = self._process.pid
        self.stdout = os.fdopen(os.dup(reader.fileno()), "rb", buffering=0)
        reader.close()

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the status of the program, which has ended."""
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def read(self, deadline: float) -> bytes:
        """Returns what of the output has come, at least a byte, or nothing at its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise subprocess.TimeoutExpired(self.args, 0)
            return os.read(self.stdout.fileno(), 1 << 16)

    def rest(self, timeout: float) -> bytes:
        """Returns the rest of the output of the program, which has ended then."""
        deadline = time.monotonic() + timeout
        text = bytearray()
        while data := self.read(deadline):
            text += data
        self.wait(max(0.1, deadline - time.monotonic()))
        return bytes(text)


def module_source(module: str, *arguments: object) -> str:
    """Returns a program that does what `python -m module arguments` does."""
    words = [module, *map(str, arguments)]
    return f"import runpy, sys\nsys.argv = {words!r}\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def run_module(
    module: str, *arguments: object, timeout: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m module arguments`, but forked, and returns it when it has finished; `environment` is added to
    this process's."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(module_source(module, *arguments), {**os.environ, **environment}, Path(folder))
        try:
            return program.finish(time.monotonic() + timeout)
        finally:
            program.kill()
