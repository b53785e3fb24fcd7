# SPDX-License-Identifier: Apache-2.0
"""Processes for tests, forked from a server that has imported PyTorch once and runs no threads: importing it takes
most of a short test's time."""

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

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


def redirect(path: Path, *numbers: int) -> None:
    """Lets these descriptors of this process append to the file."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in numbers:
        os.dup2(opened, number)
    os.close(opened)


def leave(code: int) -> None:
    """Ends this process as an ordinary program does, whose interpreter is taken down piece by piece; multiprocessing
    would end it at once."""
    sys.stdout.flush()
    ctypes.pythonapi.Py_Exit(code)


def end_in_full() -> None:
    """Lets the end of this process's interpreter collect what was imported before the fork too: slow, and for tests of
    that end only."""
    gc.unfreeze()


def run_source(source: str, environment: Mapping[str, str], out: Path, err: Path) -> None:
    """What `python -c source` does, in a process that has imported PyTorch."""
    import torch.distributed as dist

    redirect(out, 1)
    redirect(err, 2)
    os.environ.clear()
    os.environ.update(environment)
    dist.set_debug_level_from_env()
    tempfile.tempdir = None  # TMPDIR may be another one
    multiprocessing.process.current_process()._config["daemon"] = False  # it may have children
    leave(0 if ctypes.pythonapi.PyRun_SimpleString(source.encode()) == 0 else 1)


class Program:
    """A running `python -c source`, but forked: it finds PyTorch imported."""

    def __init__(self, source: str, environment: Mapping[str, str], folder: Path) -> None:
        self.source, self.out, self.err = source, folder / "out", folder / "err"
        self.process = fork(run_source, source, dict(environment), self.out, self.err)

    def finish(self, deadline: float) -> subprocess.CompletedProcess[str]:
        """The ended program with what it printed; `deadline` is of time.monotonic()."""
        timeout = max(0.1, deadline - time.monotonic())
        self.process.join(timeout)
        out, err = (path.read_text() if path.exists() else "" for path in (self.out, self.err))
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.source, timeout, out, err)
        return subprocess.CompletedProcess(self.source, self.process.exitcode, out, err)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def module_source(module: str, *arguments: object) -> str:
    """The program that does what `python -m module arguments` does."""
    words = [module, *map(str, arguments)]
    return f"import runpy, sys\nsys.argv = {words!r}\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def run_module(
    module: str, *arguments: object, timeout: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The finished `python -m module arguments`, but forked; `environment` is added to this process's."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(module_source(module, *arguments), {**os.environ, **environment}, Path(folder))
        try:
            return program.finish(time.monotonic() + timeout)
        finally:
            program.kill()
