# SPDX-License-Identifier: Apache-2.0
"""Starts and watches the ranks of a job that shrinks, and assigns waiting ranks to groups."""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.utils import macros
from torch.distributed.launcher.api import LaunchConfig

from atoll._newer_torch import grace_seconds
from atoll.launch import jobs
from atoll.launch.agent import PipedLogs
from atoll.launch.failures import hint, how_it_ended, where_of
from atoll.launch.members import Decision, End, Grow, Kill, Members, Publish, Start, State
from atoll.launch.output import Output
from atoll.launch.processes import close_streams, kill_groups, start_time
from atoll.recovering.notices import (
    END,
    MEMBER,
    READY,
    VOID,
    Notice,
    answer_key,
    count_key,
    growth_key,
    notice_key,
)

_TICK_S = 0.25
_A_LONG_TIME = timedelta(days=10_000)
_END_TIMEOUT_S = 5.0
_GAP_S = 1.0


@dataclass
class Process:
    """A started process; `asked` counts its READY notices."""

    member: str
    local_rank: int
    handler: SubprocessHandler
    error_file: str
    asked: int = 0

    @property
    def pid(self) -> int:
        return int(self.handler.proc.pid)


@dataclass(frozen=True)
class Ended:
    member: str
    code: int


@dataclass(frozen=True)
class StoreLost:
    problem: str


@dataclass(frozen=True)
class NoNotice:
    """Something other than a notice was written in place of one."""

    problem: str


class Heard:
    """Counts the notices that have been read. A rank that dies or is stopped between taking a notice's number and
    writing the notice leaves a gap, which must not block the notices of other ranks."""

    def __init__(self) -> None:
        self.index = 0
        self._gap, self._since = 0, 0.0

    def skip_void(self, store: dist.Store, now: float) -> None:
        """Gives up the next notice if it was announced and has not arrived; its rank notices and takes another
        number."""
        following = self.index + 1
        if store.add(count_key(), 0) < following:
            return
        if self._gap != following:
            self._gap, self._since = following, now
        elif now - self._since > _GAP_S:
            store.compare_set(notice_key(following), "", VOID)

    def end(self, store: dist.Store) -> None:
        """Ends the thread that reads notices."""
        for index in range(self.index + 1, store.add(count_key(), 1) + 1):
            store.compare_set(notice_key(index), "", END)


@dataclass
class Hooks:
    """The command's callbacks for events of the supervisor."""

    say: Callable[[str], None]
    started: Callable[[list[jobs.WorkerState]], None]
    """Receives the running ranks."""
    islands: Sequence[str]
    """The island of each local rank; empty without islands."""


@dataclass(frozen=True)
class Meeting:
    """The store through which the supervisor and its ranks communicate."""

    store: dist.Store
    listening: dist.Store
    """Another connection to the store, for the waiting thread."""
    environment: dict[str, str]
    """The address of the store for the ranks."""
    name: dist.Store | None = None
    """Reserves the job's name while it exists."""


class Supervisor:
    """One job. Call run() once, on the main thread, with which the ranks end."""

    def __init__(
        self, config: LaunchConfig, command: Sequence[str], logs: PipedLogs, output: Output, least: int, hooks: Hooks,
        meeting: Meeting,
    ) -> None:  # fmt: skip
        self._config, self._command, self._logs, self._output, self._hooks = config, command, logs, output, hooks
        self._meeting, self._store, self._listening = meeting, meeting.store, meeting.listening
        self._members = Members(list(hooks.islands), least, config.max_restarts, self._is_stopped)
        self._processes: dict[str, Process] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._events: queue.SimpleQueue[Ended | Notice | NoNotice | StoreLost] = queue.SimpleQueue()
        self._heard = Heard()
        self._starts = 0
        self._is_store_lost = False

    def run(self) -> RunResult:
        """Runs the job and returns how it ended. Raises SignalException after a signal; the ranks are stopped either
        way."""
        listener = threading.Thread(target=self._listen, name="atoll-notices", daemon=True)
        listener.start()
        try:
            problem = self._supervise()
        except dist.DistError as error:
            problem, self._is_store_lost = _store_lost(error), True
        finally:
            self._stop()
            if not self._is_store_lost:  # otherwise the thread might wait forever
                with contextlib.suppress(RuntimeError):
                    self._store.set_timeout(timedelta(seconds=_END_TIMEOUT_S))
                    self._heard.end(self._store)
                listener.join(_END_TIMEOUT_S)
        if problem:
            self._hooks.say(problem)
        state = WorkerState.FAILED if problem else WorkerState.SUCCEEDED
        return RunResult(state, failures=self._failures if problem else {})

    def _supervise(self) -> str:
        while True:
            while decisions := self._members.decide(time.monotonic()):
                for decision in decisions:
                    if isinstance(decision, End):
                        return decision.problem
                    self._carry_out(decision)
            event: Ended | Notice | NoNotice | StoreLost | None = None
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=_TICK_S)
            self._heard.skip_void(self._store, time.monotonic())
            if event is None:
                continue
            if isinstance(event, StoreLost):
                self._is_store_lost = True
                return event.problem
            self._take(event)

    def _take(self, event: Ended | Notice | NoNotice) -> None:
        if isinstance(event, NoNotice):
            self._hooks.say(f"an invalid notice in the job's store is ignored: {event.problem}")
            return
        if isinstance(event, Ended):
            self._note_end(event)
            return
        if event.kind == READY and event.member in self._processes:
            self._processes[event.member].asked += 1
        self._members.notice(event, time.monotonic())

    def _note_end(self, event: Ended) -> None:
        process = self._processes[event.member]
        close_streams(process.handler)
        self._members.ended(event.member, event.code)
        if event.code != 0:
            kill_groups([process.pid])  # its remaining children
            failure = ProcessFailure(process.local_rank, process.pid, event.code, process.error_file)
            self._failures[process.local_rank] = failure
            is_killed = self._members.members[event.member].is_killed
            how = how_it_ended(failure) + ("" if is_killed else hint(failure))
            where = where_of(failure, self._hooks.islands)
            self._hooks.say(f"rank {process.local_rank} is lost: {where}pid {process.pid}, {how}")
        self._report_running()

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self._start(decision)
        elif isinstance(decision, Kill):
            process = self._processes[decision.member]
            self._hooks.say(f"rank {process.local_rank} (pid {process.pid}) is killed: {decision.reason}")
            kill_groups([process.pid])
        elif isinstance(decision, Grow):
            self._store.set(growth_key(decision.number), "1")
        elif isinstance(decision, Publish):
            self._publish(decision)

    def _publish(self, decision: Publish) -> None:
        text = decision.roster.text()
        for seat in decision.roster.seats:
            self._store.set(answer_key(seat.member, self._processes[seat.member].asked), text)
        if decision.roster.number > 1:
            ranks = ", ".join(str(seat.local_rank) for seat in decision.roster.seats)
            several = len(decision.roster.seats) > 1
            self._hooks.say(f"group {decision.roster.number}: rank{'s' * several} {ranks} go{'es' * (not several)} on "
                            f"from step {decision.step}")  # fmt: skip

    def _start(self, decision: Start) -> None:
        rank = decision.local_rank
        envs = {local_rank: self._environment(local_rank) for local_rank in range(len(self._hooks.islands))}
        if self._starts == 0:
            self._streams = self._logs.reify(envs)
            self._error_files = [envs[local_rank]["TORCHELASTIC_ERROR_FILE"] for local_rank in envs]
        if self._starts >= len(envs):
            for environment in envs.values():  # the attempt names the folder of log files
                environment["TORCHELASTIC_RESTART_COUNT"] = str(self._starts - len(envs) + 1)
            self._streams = self._logs.reify(envs, only=rank)
            self._error_files[rank] = envs[rank]["TORCHELASTIC_ERROR_FILE"]
        self._starts += 1
        environment = {**envs[rank], "TORCHELASTIC_RESTART_COUNT": "0", MEMBER: decision.member,
                       "TORCHELASTIC_ERROR_FILE": self._error_files[rank]}  # fmt: skip
        command = macros.substitute(list(self._command), str(rank))
        handler = SubprocessHandler(
            command[0], tuple(command[1:]), environment, self._streams.stdouts[rank], self._streams.stderrs[rank], rank,
            self._config.numa_options,
        )  # fmt: skip
        process = Process(decision.member, rank, handler, self._error_files[rank])
        self._processes[decision.member] = process
        if self._starts >= len(envs):
            self._output.watch({rank: process.pid} if self._starts > len(envs) else self._pids())
        threading.Thread(target=self._wait, args=(process,), name=f"atoll-wait-{decision.member}", daemon=True).start()
        self._report_running()

    def _environment(self, local_rank: int) -> dict[str, str]:
        """Returns the environment that torch elastic's agent would set, for programs that read it."""
        count = str(len(self._hooks.islands))
        return {
            "RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": str(local_rank), "GROUP_RANK": "0",
            "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "ROLE_WORLD_SIZE": count, "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": self._config.role, "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": str(self._config.max_restarts),
            "TORCHELASTIC_RUN_ID": self._config.run_id, **self._meeting.environment,
        }  # fmt: skip

    def _pids(self) -> dict[int, int]:
        return {process.local_rank: process.pid for process in self._processes.values()}

    def _report_running(self) -> None:
        members = self._members.members
        workers = [
            jobs.WorkerState(process.local_rank, process.local_rank, self._hooks.islands[process.local_rank],
                             process.pid, start_time(process.pid) or 0)
            for name, process in self._processes.items() if members[name].state is not State.ENDED
        ]  # fmt: skip
        self._hooks.started(workers)

    def _wait(self, process: Process) -> None:
        self._events.put(Ended(process.member, process.handler.proc.wait()))

    def _listen(self) -> None:
        self._listening.set_timeout(_A_LONG_TIME)
        try:
            while (text := self._listening.get(notice_key(self._heard.index + 1))) != END.encode():
                self._heard.index += 1
                if text != VOID.encode():
                    self._events.put(_heard(text))
        except Exception as error:
            self._events.put(StoreLost(_store_lost(error)))

    def _is_stopped(self, name: str) -> bool:
        try:
            text = Path(f"/proc/{self._processes[name].pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def _stop(self) -> None:
        """Sends SIGTERM, and SIGKILL after the grace period, or at once if a signal arrives in the meantime."""
        running = [process for process in self._processes.values() if process.handler.proc.poll() is None]
        deadline = time.monotonic() + grace_seconds(self._config)
        try:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.handler.close(signal.SIGTERM)
            while any(process.handler.proc.poll() is None for process in running) and time.monotonic() < deadline:
                time.sleep(0.02)
        except SignalException:
            pass
        kill_groups([process.pid for process in running])
        for process in running:
            self._reap(process)

    def _reap(self, process: Process) -> None:
        """Reports how a stopped rank ended, after the reason for which it was stopped."""
        code = process.handler.proc.wait(_END_TIMEOUT_S)
        if code != 0 and process.local_rank not in self._failures:
            self._failures[process.local_rank] = ProcessFailure(
                process.local_rank, process.pid, code, process.error_file
            )


def _heard(text: bytes) -> Notice | NoNotice:
    try:
        return Notice.parse(text)
    except ValueError as error:
        return NoNotice(str(error))


def _store_lost(error: Exception) -> str:
    return f"the job's store is lost: {(str(error).splitlines() or [type(error).__name__])[0]}"
