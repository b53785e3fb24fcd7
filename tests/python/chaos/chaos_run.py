# SPDX-License-Identifier: Apache-2.0
"""Runs one trial in processes of its own, and reports what was wrong."""

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from chaos_ranks import serve_store, take_part
from chaos_trial import DEATH_S, Trial, environments, has_reason_to_raise, is_heard_of, limit_s
from fault_jobs import END_S, START_S, TORCH_ERRORS, Job

HANG_S = 60.0  # from a fault to the last report; far more than what is promised
SLOW_HANG_S = 120.0
RESUMED_S = 2.0  # from the moment a stopped rank continues to its exception
SLICE_S = 0.001  # the share of a processor that a slow rank gets
PAUSE_S = 0.5
OWN_WORDS = re.compile(r"descriptor|open files|EMFILE|errno 24", re.IGNORECASE)
OF_THE_JOB = re.compile(r"\brank \d+ \(rank (\d+) of the job\)")
TELLERS = re.compile(r"\brank (\d+) reported: ")
TOLD_BY = re.compile(r"[^:;]*? on rank \d+(?: timed out)?: |\brank \d+ reported: ")
RANKS = re.compile(r"\branks? (\d+(?:(?:, | and |-)\d+)*)\b")


@dataclass
class End:
    """The end of a rank: "end", an exception's name, or "silent"; with the seconds since the fault."""

    kind: str
    text: str = ""
    after_s: float | None = None


@dataclass
class Outcome:
    seed: int
    fault: str
    phase: str
    what: str
    seconds: float = 0.0
    load: float = 0.0  # of the machine, when it was over
    struck: bool = False  # whether the fault struck before the trial was over
    heard: bool = True  # False: it struck before the victim had sent everything that others need
    hangs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # results
    late: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # anything else: a crash, a missing or unnecessary exception
    raised_s: list[float] = field(default_factory=list)  # from the fault to the exception of each rank
    named: int = 0  # exceptions that name the right rank
    unnamed: list[str] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not (self.hangs or self.wrong or self.late or self.faults)

    def complaints(self) -> list[str]:
        kinds = {"hang": self.hangs, "wrong": self.wrong, "late": self.late, "fault": self.faults}
        return [f"{kind}: {text}" for kind, texts in kinds.items() for text in texts]


def blamed(text: str) -> set[int]:
    """Returns the ranks that an exception's text blames, by their numbers in the job. These are neither the rank
    that raises it, nor the other end of an operation, nor the rank that reported it, unless that one names only
    itself."""

    def numbers(text: str) -> set[int]:
        return {int(number) for ranks in RANKS.findall(text) for number in re.findall(r"\d+", ranks)}

    text = OF_THE_JOB.sub(r"rank \1", text)
    return numbers(TOLD_BY.sub("", text)) or {int(number) for number in TELLERS.findall(text)}


def names_link(text: str, rank: int, ends: set[int]) -> bool:
    """Returns whether an exception on this rank blames an end of the link; a report by the other end counts, too."""
    found = blamed(text) & ends
    told_by = {int(number) for number in TELLERS.findall(text)}
    return bool(found - {rank}) or (rank in found and bool(told_by & ends))


def processor_seconds(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9
    return 0.0


def process_state(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


class Slowing:
    """Lets a process run for a hundredth of the time, until stop()."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def used(self) -> float:
        tasks = os.listdir(f"/proc/{self.pid}/task")
        return sum(processor_seconds(int(task)) for task in tasks)

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            while not self.over.is_set():
                before, begin = self.used(), time.monotonic()
                while (used := self.used() - before) < SLICE_S and time.monotonic() - begin < 20 * SLICE_S:
                    self.over.wait(SLICE_S / 2)
                os.kill(self.pid, signal.SIGSTOP)
                self.over.wait(min(99 * max(used, 0.0), PAUSE_S))
                os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.over.set()
        self.thread.join()


class Run:
    def __init__(self, trial: Trial, job: Job) -> None:
        self.trial, self.job = trial, job
        self.outcome = Outcome(trial.seed, trial.fault, trial.phase, trial.describe())
        self.ends: dict[int, End] = {}
        self.at: float | None = None  # of the fault
        self.resumed_at: float | None = None
        self.slowing: Slowing | None = None
        self.calling: dict[int, float] = {}  # when each rank started the call inside which the fault strikes
        self.made = False  # all groups, on the victim
        self.is_heard = True

    def go(self) -> Outcome:
        begin = time.monotonic()
        victim = self.trial.victim
        others = set(range(self.trial.size)) - self.gone()
        try:
            ready = self.job.wait_for("ready", seconds=START_S)
            for rank in ready:
                self.job.send(rank, [ready[other].details for other in range(self.trial.size)])
            self.collect(lambda: others - set(self.ends))
            if self.gone() and self.at is None:
                self.collect(lambda: set() if self.at is not None else {victim} - set(self.ends))
            if self.trial.fault == "stop" and victim not in self.ends:
                self.resume()
        except pytest.fail.Exception as failure:
            self.outcome.faults.append(f"the trial did not start: {failure}")
        finally:
            if self.slowing:
                self.slowing.stop()
        self.see_processes_end()
        if self.trial.phase == "making" and self.trial.fault == "descriptors":  # there may have been enough of them
            self.is_heard = self.hears_of_victim()
        self.outcome.struck = self.at is not None
        self.outcome.heard = self.is_heard
        self.outcome.seconds = time.monotonic() - begin
        self.outcome.load = round(os.getloadavg()[0], 1)
        return self.outcome

    def gone(self) -> set[int]:
        """Returns the ranks that report nothing once the fault has struck."""
        return {self.trial.victim} if self.trial.fault in ("kill", "stop") else set()

    def collect(self, missing: Callable[[], set[int]]) -> None:
        """Reads the ranks' reports until none is missing."""
        patience = SLOW_HANG_S if self.trial.fault == "slow" else HANG_S
        deadline = time.monotonic() + patience
        while silent := missing():
            connections = {self.job.connections[rank]: rank for rank in self.job.connections if rank not in self.ends}
            ready = wait(list(connections), max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in sorted(silent):
                    self.hang(rank, f"rank {rank} has not ended after {patience:.0f} s")
                return
            for connection, rank in connections.items():
                if connection not in ready:
                    continue
                try:
                    self.hear(rank, *connection.recv())
                except (EOFError, OSError):
                    self.ends[rank] = End("silent")

    def hear(self, rank: int, name: str, at: float, details: Any) -> None:
        if name == "fault":
            self.at = at  # of several reports, the last one completes the fault
            if self.trial.phase == "making" and self.gone():
                self.wait_until_gone()
                self.is_heard = self.hears_of_victim()
            if self.trial.fault == "slow":
                self.slowing = Slowing(self.job.pid(rank))
            if self.trial.variant == "both ways" and rank == self.trial.victim:
                self.job.send(self.trial.peer, "vanish")
        elif name == "calling":
            self.calling[rank] = at
        elif name == "made":
            self.made = rank == self.trial.victim or self.made
        elif name == "connections" and details == 0 and self.trial.phase != "destroying":  # then all may be closed
            self.outcome.faults.append(f"rank {rank} found no connection to break")
        elif name == "end":
            self.ends[rank] = End("end", after_s=at)
        elif name == "error":
            self.ends[rank] = End(*details, after_s=at)

    def wait_until_gone(self) -> None:
        """Waits until the victim is dead or stopped."""
        pid, deadline = self.job.pid(self.trial.victim), time.monotonic() + END_S
        while process_state(pid) not in "TZX" and time.monotonic() < deadline:
            time.sleep(0.001)

    def hears_of_victim(self) -> bool:
        return self.made or is_heard_of(self.trial, self.job.store.list_keys())

    def resume(self) -> None:
        """Continues the stopped rank, which learns that it was given up."""
        self.wait_until_gone()
        self.resumed_at = time.monotonic()
        os.kill(self.job.pid(self.trial.victim), signal.SIGCONT)
        self.collect(lambda: {self.trial.victim} - set(self.ends))

    def hang(self, rank: int, text: str) -> None:
        """Records a hang, and makes the rank write its stacks to its log."""
        self.outcome.hangs.append(text)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.job.pid(rank), number)
        self.job.processes[rank].join(0.5)

    def see_processes_end(self) -> None:
        deadline = time.monotonic() + END_S
        for rank, process in self.job.processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            code, end = process.exitcode, self.ends.get(rank)
            killed = self.trial.fault == "kill" and rank == self.trial.victim and self.at is not None
            if code is None and end is not None:
                self.hang(rank, f"the process of rank {rank} still runs {END_S} s after its last report")
            elif code and not (killed and code == -signal.SIGKILL) and not self.was_told(end, code):
                self.outcome.faults.append(f"rank {rank} ended with {code}")

    @staticmethod
    def was_told(end: End | None, code: int) -> bool:
        """Returns whether a rank reported its exception and then ended with it."""
        return code == 1 and end is not None and end.kind not in ("end", "silent")


class Judge:
    """Compares what ranks did with what they must do."""

    def __init__(self, run: Run) -> None:
        self.run, self.trial, self.outcome = run, run.trial, run.outcome

    def judge(self) -> Outcome:
        for rank, end in sorted(self.run.ends.items()):
            if rank in self.run.gone() and self.trial.fault == "kill" and self.run.at is not None:
                continue
            self.look_at(rank, end)
        self.look_at_all()
        begin = self.run.at
        for rank, end in self.run.ends.items():
            after = None if begin is None or end.after_s is None else end.after_s - begin
            self.outcome.ends[rank] = asdict(End(end.kind, end.text[:500], after))
        return self.outcome

    def look_at(self, rank: int, end: End) -> None:
        if end.kind == "silent":
            self.outcome.faults.append(f"rank {rank} ended without a report")
        elif "wrong result" in end.text:
            self.outcome.wrong.append(f"rank {rank}: {end.text}")
        elif end.kind == "end":
            if has_reason_to_raise(self.trial) and self.run.at is not None:
                self.outcome.faults.append(f"rank {rank} ended without an exception")
        elif self.run.at is None:
            self.outcome.faults.append(f"rank {rank} raised before the fault struck: {end.kind}: {end.text}")
        else:
            self.look_at_error(rank, end)

    def look_at_error(self, rank: int, end: End) -> None:
        if self.trial.fault == "slow" or (self.trial.fault == "store" and self.trial.phase != "making"):
            self.outcome.faults.append(f"rank {rank} raised though nothing kept it from going on: {end.text}")
            return
        is_own = self.trial.fault == "descriptors" and rank == self.trial.victim
        if end.kind not in TORCH_ERRORS and not is_own:
            self.outcome.faults.append(f"rank {rank} raised {end.kind}: {end.text}")
        resumed = rank in self.run.gone()
        since, limit = self.limit(rank)
        assert end.after_s is not None
        seconds = max(0.0, end.after_s - since)
        if seconds > limit:
            self.outcome.late.append(f"rank {rank} learned of it after {seconds:.2f} s, not {limit}: {end.text}")
        if resumed:
            return  # the rank that it names does not matter, because the others gave it up
        self.outcome.raised_s.append(max(0.0, end.after_s - self.felt_at(rank)))
        if self.names_the_right(rank, end.text):
            self.outcome.named += 1
        else:
            self.outcome.unnamed.append(f"rank {rank}: {end.text}")

    def limit(self, rank: int) -> tuple[float, float]:
        """Returns the moment from which a rank's exception is due, and the seconds within which it must come."""
        trial, run = self.trial, self.run
        assert run.at is not None
        if rank in run.gone():  # it waits for ranks that may have ended before they joined
            assert run.resumed_at is not None
            return run.resumed_at, limit_s(trial, False) if trial.phase == "making" else RESUMED_S
        victim = run.ends.get(trial.victim)
        is_other = trial.fault == "descriptors" and rank != trial.victim and run.is_heard
        if is_other and victim and victim.kind != "end" and victim.after_s is not None:
            return victim.after_s, DEATH_S
        return self.felt_at(rank), limit_s(trial, run.is_heard)

    def felt_at(self, rank: int) -> float:
        """Returns when the fault was there for this rank: not before it started the call that the fault strikes in."""
        assert self.run.at is not None
        return max(self.run.at, self.run.calling.get(rank, 0.0))

    def names_the_right(self, rank: int, text: str) -> bool:
        trial = self.trial
        if trial.fault == "store":
            return "store" in text.lower()
        if trial.fault == "descriptors" and rank == trial.victim:
            return bool(OWN_WORDS.search(text))
        if trial.fault in ("cut", "half_open"):
            return names_link(text, rank, {trial.victim, trial.peer})
        return trial.victim in blamed(text) - {rank}

    def look_at_all(self) -> None:
        kinds = {end.kind == "end" for end in self.run.ends.values()}
        if self.trial.fault == "descriptors" and len(kinds) > 1:
            self.outcome.faults.append("some ranks ended well and some did not")


def run_trial(trial: Trial, folder: Path) -> Outcome:
    """Runs a trial. If something was wrong, everything that ranks printed and dumped stays in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "store").mkdir(parents=True)
    common, own = environments(trial)
    with contextlib.ExitStack() as stack:
        port, pid = None, 0
        if trial.fault == "store":
            server = stack.enter_context(Job(folder / "store", serve_store, "A"))
            port, pid = server.wait_for("store")[0].details
        job = stack.enter_context(Job(folder, take_part, trial.layout, (trial, port, pid), common, own))
        run = Run(trial, job)
        run.go()
        outcome = Judge(run).judge()
    if outcome.good:
        shutil.rmtree(folder)
    return outcome
