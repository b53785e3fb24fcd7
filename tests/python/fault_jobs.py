# SPDX-License-Identifier: Apache-2.0
"""Jobs that suffer faults: new processes for each test, and a record of what each reported and when.

Times are time.monotonic(), which all processes of a machine share."""

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forking import PROCESSES, fork, leave, redirect

TORCH_ERRORS = {"DistBackendError", "DistNetworkError", "DistStoreError"}
START_S = 60  # limits what is not measured, such as starting processes on a busy machine
END_S = 20  # from a body's end to that of its process, for which Python needs seconds on a busy machine


@dataclass
class Event:
    """A report of a rank: that it reached a point, or ("error") the exception with which its body ended."""

    rank: int
    name: str
    at: float
    details: Any = None


@dataclass
class Failure:
    """The exception with which a body ended."""

    kind: str
    text: str
    at: float


class Me:
    """A rank's view of its job, given to the body."""

    def __init__(self, rank: int, size: int, port: int, connection: Connection) -> None:
        self.rank, self.size, self.port, self.connection = rank, size, port, connection

    def join(self, seconds: float = 60, port: int | None = None) -> None:
        """Joins the default group through the job's store. `seconds` limits this and every collective."""
        import atoll

        if os.environ.get("ATOLL_DEVICE", "").startswith("sim"):
            import atoll.sim  # noqa: F401
        limit = timedelta(seconds=seconds)
        store = dist.TCPStore("127.0.0.1", port or self.port, is_master=False, timeout=timedelta(seconds=START_S))
        dist.init_process_group("atoll", store=store, rank=self.rank, world_size=self.size, timeout=limit)

    def limit(self, seconds: float, device: str = "cpu") -> None:
        """Limits every later call of the default group on `device`, after joining, which may take longer."""
        dist.group.WORLD._get_backend(torch.device(device)).set_timeout(timedelta(seconds=seconds))

    def tell(self, name: str, details: Any = None) -> None:
        self.connection.send((name, time.monotonic(), details))

    def listen(self) -> Any:
        """Blocks until the test sends something."""
        return self.connection.recv()

    def run_together(self) -> None:
        """Reports "running" and waits, through the job's store, until all ranks of the job have done so. A rank that
        fails afterwards then fails no earlier call of another rank, whose part of a collective may take longer than
        its own."""
        self.tell("running")
        store = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=START_S))
        store.set(f"running/{self.rank}", "")
        store.wait([f"running/{rank}" for rank in range(self.size)])

    def check_sum(self, count: int = 1000, group: dist.ProcessGroup | None = None) -> None:
        """One all_reduce with its result checked, on this rank's device."""
        import atoll

        tensor = torch.full((count,), float(self.rank), device=atoll.device())
        dist.all_reduce(tensor, group=group)
        expected = sum(dist.get_process_group_ranks(group or dist.group.WORLD))
        assert tensor.eq(expected).all().item(), f"the sum is {tensor[0]}, not {expected}"


def reduce_forever(me: Me, count: int) -> None:
    """A body that calls all_reduce until a fault ends it."""
    me.join()
    me.check_sum(count)
    me.tell("running")
    while True:
        me.check_sum(count)


Body = Callable[..., None]


def import_what_joins() -> None:
    """Imports what joining a group imports, so that this time is not part of any limit."""
    import atoll.backend  # noqa: F401
    from atoll import vendors

    vendors.vendors()


def serve(body: Body, me: Me, log: Path, environment: dict[str, str], arguments: tuple[Any, ...]) -> None:
    redirect(log, 1, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    code = 0
    try:
        import_what_joins()
        body(me, *arguments)
        me.tell("end")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        me.tell("end")
    except BaseException as error:
        code = 1
        traceback.print_exc()
        me.tell("error", (type(error).__name__, str(error)))
    leave(code)


class Job:
    """`size` fresh processes that run body(me, *arguments); a context manager that leaves nothing running.

    `layout` gives each rank's island by a letter; `own` holds what differs in one rank's environment."""

    def __init__(
        self,
        folder: Path,
        body: Body,
        layout: str = "AAA",
        arguments: tuple[Any, ...] = (),
        environment: Mapping[str, str] | None = None,
        own: Mapping[int, Mapping[str, str]] | None = None,
        start: Iterable[int] | None = None,
    ) -> None:
        self.folder, self.size = folder, len(layout)
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.events: list[Event] = []
        self.processes: dict[int, Any] = {}
        self.connections: dict[int, Connection] = {}
        for rank in start if start is not None else range(self.size):
            variables = {"LOCAL_RANK": str(rank), "ATOLL_ISLAND": layout[rank], "ATOLL_DUMP_DIR": str(folder)}
            variables |= dict(environment or {}) | dict((own or {}).get(rank, {}))
            mine, theirs = PROCESSES.Pipe()
            me = Me(rank, self.size, self.store.port, theirs)
            log = folder / f"rank{rank}.log"
            process = fork(serve, body, me, log, variables, arguments)
            theirs.close()
            self.processes[rank], self.connections[rank] = process, mine

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for rank, process in self.processes.items():
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.join()
            self.connections[rank].close()
        if kind is not None:
            print(self.report())

    def report(self) -> str:
        lines = [f"{event.at:.3f} rank {event.rank} {event.name} {event.details or ''}" for event in self.events]
        lines += [f"-- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("rank*.log"))]
        return "\n".join(lines)

    def pid(self, rank: int) -> int:
        return int(self.processes[rank].pid)

    def send(self, rank: int, message: Any) -> None:
        self.connections[rank].send(message)

    def signal(self, rank: int, number: signal.Signals = signal.SIGKILL) -> float:
        """Sends a signal; returns the time of it."""
        at = time.monotonic()
        os.kill(self.pid(rank), number)
        return at

    def wait_for(self, name: str, ranks: Iterable[int] | None = None, seconds: float = START_S) -> dict[int, Event]:
        """Returns the next event `name` of each of `ranks` (default: all that run). Fails if one ends without it or
        reports nothing."""
        waiting = set(ranks if ranks is not None else self.processes)
        found: dict[int, Event] = {}
        end = time.monotonic() + seconds
        while waiting:
            ready = wait([self.connections[rank] for rank in waiting], max(0.0, end - time.monotonic()))
            if not ready:
                pytest.fail(f'no "{name}" from ranks {sorted(waiting)} within {seconds} s')
            for rank in [rank for rank in waiting if self.connections[rank] in ready]:
                try:
                    event = Event(rank, *self.connections[rank].recv())
                except (EOFError, OSError):
                    pytest.fail(f'rank {rank} ended without "{name}"')
                self.events.append(event)
                if event.name == name:
                    found[rank] = event
                    waiting.discard(rank)
                elif event.name in ("error", "end"):
                    pytest.fail(f'rank {rank} said {event.name} {event.details or ""} instead of "{name}"')
        return found

    def errors(self, ranks: Iterable[int], since: float, within: float) -> dict[int, Failure]:
        """Returns the exceptions with which bodies ended. Each must have one of torch.distributed's types and come
        at most `within` seconds after `since`."""
        events = self.wait_for("error", ranks, START_S)
        failures = {rank: Failure(*event.details, event.at) for rank, event in events.items()}
        for rank, failure in failures.items():
            assert failure.kind in TORCH_ERRORS, f"rank {rank}: {failure.kind}: {failure.text}"
            late = failure.at - since
            assert late <= within, f"rank {rank} learned of it after {late:.2f} s: {failure.text}"
        return failures

    def failures(self, ranks: Iterable[int], since: float, within: float) -> dict[int, Failure]:
        """Like errors(), and the processes of the ranks must end by themselves soon after."""
        ranks = list(ranks)
        failures = self.errors(ranks, since, within)
        self.check_ends(ranks, code=1)
        return failures

    def check_ends(self, ranks: Iterable[int] | None = None, code: int = 0, seconds: float = END_S) -> None:
        """Checks that the processes of `ranks` end by themselves with `code`, within `seconds` from now."""
        end = time.monotonic() + seconds
        for rank in ranks if ranks is not None else self.processes:
            process = self.processes[rank]
            process.join(max(0.0, end - time.monotonic()))
            assert process.exitcode is not None, f"rank {rank} still runs {seconds} s after its body's end"
            assert process.exitcode == code, f"rank {rank} ended with {process.exitcode}"


def process_ends(pid: int, seconds: float) -> bool:
    """Returns whether the process is gone within `seconds`, whatever its parent is."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(handle)


@contextlib.contextmanager
def expected(*kinds: str) -> Iterator[list[str]]:
    """Expects one of torch.distributed's errors from the body; its text is appended to the list."""
    texts: list[str] = []
    try:
        yield texts
    except Exception as error:
        assert type(error).__name__ in (set(kinds) or TORCH_ERRORS), f"{type(error).__name__}: {error}"
        texts.append(str(error))
        return
    raise AssertionError("no exception")
