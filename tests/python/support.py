# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: processes that live for many tests, or run one program."""

import contextlib
import itertools
import logging
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from forking import PROCESSES, Program, fork

ANSWER_TIMEOUT_S = 90
DEVICE = "TEST_DEVICE"
BACKEND = "TEST_BACKEND"  # of the default group; "atoll" where it is not set


def later(*values: Any) -> Any:
    """Marks a parameter for `make verify` only."""
    return pytest.param(*values, marks=pytest.mark.verify)


def sampled(cases: Iterable[Any], left: Collection[Any]) -> list[Any]:
    """Returns the cases as parameters; those that are named in `left` are for `make verify` only."""
    return [later(case) if case in left else case for case in cases]


def crossed(*choices: Iterable[Any]) -> list[Any]:
    """Returns all combinations of the choices as parameters. `make test` has as many as the longest list of choices,
    in which each choice occurs, and `make verify` has the others."""
    lists = [list(each) for each in choices]
    kept = {tuple(i % len(each) for each in lists) for i in range(max(map(len, lists)))}
    places = itertools.product(*(range(len(each)) for each in lists))
    combinations = ((place, [each[i] for each, i in zip(lists, place, strict=True)]) for place in places)
    return [pytest.param(*values) if place in kept else later(*values) for place, values in combinations]


def threads_of_atoll() -> list[str]:
    """Returns the names of this process's threads of Atoll, except that of a simulated device."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            names.append(path.read_text().strip())
    return [name for name in names if name.startswith("atoll-") and name != "atoll-sim"]


def device() -> str:
    """Returns the device for this rank's tensors: "cpu", or "sim" on a rank with simulated devices."""
    return os.environ.get(DEVICE, "cpu")


def group_of_library(*reductions: str) -> Any:
    """Returns a new group, whose ranks declare that their libraries have these reductions."""
    import torch.distributed as dist

    from atoll import vendors

    before = list(vendors._rows)
    vendors._rows[:] = [replace(row, reductions=frozenset(reductions)) for row in before]
    group = dist.new_group()
    vendors._rows[:] = before
    return group


@contextlib.contextmanager
def any_order_of_groups() -> Iterator[None]:
    """Lets simulated devices run operations of groups made inside concurrently, as real ones do while they have
    room. Programs whose ranks use their groups in different orders need it, and libraries of devices do not
    guarantee it."""
    before = os.environ.get("ATOLL_SIM_SERIAL", "0")
    os.environ["ATOLL_SIM_SERIAL"] = "0"
    try:
        yield
    finally:
        os.environ["ATOLL_SIM_SERIAL"] = before


@contextlib.contextmanager
def warnings_of_plans() -> Iterator[list[str]]:
    """Collects the warnings of the logger `atoll.plan` inside the context."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    keep = Keep(logging.WARNING)
    logging.getLogger("atoll.plan").addHandler(keep)
    try:
        yield said
    finally:
        logging.getLogger("atoll.plan").removeHandler(keep)


class RankError(AssertionError):
    """A function failed on some ranks; the text contains every traceback."""


def _serve(rank: int, size: int, environment: dict[str, str], port: int, connection: Connection) -> None:
    os.environ.update(environment)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.distributed as dist

    import atoll

    if environment.get(DEVICE) == "sim":
        import atoll.sim  # noqa: F401

    backend = os.environ.get(BACKEND, "atoll")
    dist.init_process_group(backend, store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=size)
    connection.send((True, None))
    while (request := connection.recv()) is not None:
        function, arguments = request
        try:
            answer = (True, function(rank, *arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        connection.send(answer)
    if dist.is_initialized():
        dist.destroy_process_group()


class Ranks:
    """`size` processes, each a rank of a default group over Atoll. `islands` gives each rank's ATOLL_ISLAND,
    `devices` the result of device() there, "cpu" or "sim", and `own` the additional environment of each rank."""

    def __init__(
        self,
        size: int,
        islands: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
        devices: Sequence[str] | None = None,
        own: Sequence[dict[str, str]] | None = None,
    ) -> None:
        self.size = size
        self._own = own
        self._devices = devices
        self._islands = islands
        self._environment = dict(environment or {})
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs function(rank, *arguments) on every rank; returns the results by rank. The function must be
        importable by name. After a failure the processes are replaced."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        return self._collect()

    def stop(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in self._processes:
            process.join(20)
        self._kill()

    def _start(self) -> None:
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.size):
            environment = dict(self._environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.size))
            if self._islands:
                environment["ATOLL_ISLAND"] = self._islands[rank]
            if self._devices:
                environment[DEVICE] = self._devices[rank]
            if self._own:
                environment.update(self._own[rank])
            here, there = PROCESSES.Pipe()
            process = fork(_serve, rank, self.size, environment, self._store.port, there, daemon=False)
            there.close()
            self._processes.append(process)
            self._connections.append(here)
        self._collect()

    def _collect(self) -> list[Any]:
        answers: list[Any] = [None] * self.size
        problems = []
        waiting = dict(zip(self._connections, range(self.size), strict=True))
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                problems.append(f"no answer from ranks {sorted(waiting.values())} within {ANSWER_TIMEOUT_S} s")
                break
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    succeeded, answers[rank] = connection.recv()
                except (EOFError, OSError):
                    self._processes[rank].join(5)
                    succeeded, answers[rank] = False, f"the process ended with code {self._processes[rank].exitcode}"
                if not succeeded:
                    problems.append(f"rank {rank}: {answers[rank]}")
        if problems:
            self._kill()
            raise RankError("\n".join(problems))
        return answers

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        self._processes, self._connections = [], []


@contextlib.contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Expects the body to raise `kind` with all `parts` in its text; usable in workers, which have no pytest."""
    try:
        yield
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def run_script(source: str, size: int, environment: dict[str, str] | None = None, timeout: float = 60) -> list[Any]:
    """Runs the Python program `source` in `size` processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in
    their environment and a running store; returns the finished processes with their output."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    deadline = time.monotonic() + timeout
    programs: list[Program] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(size):
                own = Path(folder, str(rank))
                own.mkdir()
                programs.append(Program(source, {"RANK": str(rank), "LOCAL_RANK": str(rank), **common}, own))
            return [program.finish(deadline) for program in programs]
        finally:
            for program in programs:
                program.kill()
