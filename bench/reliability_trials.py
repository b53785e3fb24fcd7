# SPDX-License-Identifier: Apache-2.0
"""A trial is a job that a fault is given to: its processes, what each of them records, and how long it takes until all
know of the fault."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from atoll.bench import machine
from atoll.bench.launch import rank_environment
from contenders import Place
from netns import ShapedLink
from peers import OpenMpi
from reliability_faults import RANKS, VICTIM, Fault, fate

RANK_PROGRAM = Path(__file__).with_name("reliability_rank.py")
START_S = 60
QUIET_S = 240.0
QUIET_PART_S = 8.0
SHORT_S = 5.0
LAST_WORDS_S = 5
MAX_CHARACTERS = 4000  # characters: mpirun prints a long explanation after it has named the rank
AGAIN_S = 30
LINK_RATE = 1_000_000_000
LAYOUT = "ABA"  # the victim is alone on its side of the link


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Job(Protocol):
    folder: Path

    def pid(self, rank: int) -> int: ...

    @property
    def meeting_place(self) -> int:
        """The id of the process that ranks meet through."""
        ...

    def words(self, rank: int) -> str:
        """What was printed for a rank, by itself or by its launcher."""
        ...

    def close(self) -> None: ...


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class TorchJob:
    """Ranks of torch.distributed, and a store in a process of its own."""

    def __init__(self, backend: str, fault: Fault, folder: Path, link: ShapedLink | None) -> None:
        self.folder = folder
        places = link.places(LAYOUT) if link else [Place()] * RANKS
        address, port = link.store if link else ("127.0.0.1", 0)
        shared = {"backend": backend, "fault": fault.name, "ranks": RANKS, "victim": VICTIM, "all": fault.all_suffer,
                  "timeout": fault.group_timeout_s, "folder": str(folder), "address": address}  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []
        self._store = self._start(places[0], {**shared, "rank": -1, "port": port}, "store.log")
        deadline = time.monotonic() + START_S
        while not (folder / "store").exists():
            if self._store.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the store did not start: {(folder / 'store.log').read_text()[-500:]}")
            time.sleep(0.01)
        shared["port"] = int((folder / "store").read_text())
        for rank, place in enumerate(places):
            self._processes.append(self._start(place, {**shared, "rank": rank}, f"rank-{rank}.log"))

    def _start(self, place: Place, settings: dict[str, Any], log: str) -> "subprocess.Popen[bytes]":
        environment = rank_environment(max(0, settings["rank"]), RANKS, str(settings["address"]), settings["port"])
        environment.update(dict(place.environment))
        command = [*place.prefix, sys.executable, str(RANK_PROGRAM), json.dumps(settings)]
        with (self.folder / log).open("wb") as output:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    @property
    def meeting_place(self) -> int:
        return self._store.pid

    def words(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.log").read_text(errors="replace").strip()[-MAX_CHARACTERS:]

    def close(self) -> None:
        for process in (*self._processes, self._store):
            kill(process.pid)
            process.wait()


class MpiJob:
    """Ranks under one mpirun, through which they also meet. Each rank records its process id."""

    def __init__(self, mpi: OpenMpi, settings: Sequence[str], how: str, fault: Fault, folder: Path) -> None:
        self.folder = folder
        program = mpi.compiled("mpi_faults")
        command = [*mpi.launch(settings, RANKS), "-np", str(RANKS), str(program), str(folder), fault.name, str(VICTIM)]
        with (folder / "mpirun.log").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, how], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def pid(self, rank: int) -> int:
        return int(next(event["pid"] for event in events_of(self.folder, rank) if event["event"] == "running"))

    @property
    def meeting_place(self) -> int:
        return self._process.pid

    def words(self, rank: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_S)
        lines = (self.folder / "mpirun.log").read_text(errors="replace").splitlines()
        return " ".join(line for line in lines if line.strip("- "))[-MAX_CHARACTERS:]

    def close(self) -> None:
        pids = []
        for rank in range(RANKS):
            with contextlib.suppress(StopIteration):
                pids.append(self.pid(rank))
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            kill(self._process.pid)
            self._process.wait()
        for pid in pids:
            kill(pid)


def events_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Returns what a rank has recorded so far; an unfinished last line is left out."""
    path = folder / f"rank-{rank}"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@contextlib.contextmanager
def link_for(fault: Fault) -> Iterator[ShapedLink | None]:
    if fault.by != "link":
        yield None
        return
    with ShapedLink(LINK_RATE) as link:
        yield link


def inject(fault: Fault, job: Job, link: ShapedLink | None) -> float:
    """Injects the fault; returns the time of it. A fault that the victim's program causes comes a little later."""
    at = time.monotonic()
    if fault.by == "signal":
        os.kill(job.pid(VICTIM), getattr(signal, fault.signal))
    elif fault.by == "store":
        kill(job.meeting_place)
        (job.folder / "fault").touch()
    elif fault.by == "victim":
        (job.folder / "fault").touch()
    elif fault.name == "cut":
        assert link is not None
        link.set_rail(0, up=False)
    else:
        assert link is not None
        link.lose_what_is_sent("AB".index(LAYOUT[VICTIM]))
    return at


def wait_until(holds: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def has_told(folder: Path, rank: int, name: str) -> bool:
    return any(event["event"] == name for event in events_of(folder, rank))


def watch(fault: Fault, job: Job, link: ShapedLink | None, limit_s: float) -> list[dict[str, Any]]:
    """Waits until the job runs, injects the fault, and returns the fate of each rank that must learn of it."""
    started = wait_until(lambda: all(has_told(job.folder, rank, "running") for rank in range(RANKS)), START_S)
    if not started:
        raise RuntimeError(f"not all ranks started within {START_S} s: {job.words(0)}")
    pids = [job.pid(rank) for rank in range(RANKS)]
    at = inject(fault, job, link)
    if fault.by == "victim":
        wait_until(lambda: has_told(job.folder, VICTIM, "misbehaves"), START_S)
        told = [event["at"] for event in events_of(job.folder, VICTIM) if event["event"] == "misbehaves"]
        if not told:
            raise RuntimeError(f"rank {VICTIM} did not cause its fault ({fault.name})")
        at = told[0]
    who = [rank for rank in range(RANKS) if fault.all_suffer or rank != VICTIM]
    ends: dict[int, float] = {}

    def all_know() -> bool:
        for rank in who:
            if rank not in ends and not is_running(pids[rank]):
                ends[rank] = time.monotonic()
        return all(rank in ends or has_told(job.folder, rank, "error") for rank in who)

    if wait_until(all_know, at + limit_s - time.monotonic()):
        wait_until(lambda: all_know() and len(ends) == len(who), AGAIN_S)  # they may form another group
    words = {rank: job.words(rank) for rank in ends}
    return [
        {"rank": rank, **fate(events_of(job.folder, rank), at, ends.get(rank), words.get(rank, ""))} for rank in who
    ]


def trial(make: Any, fault: Fault, limit_s: float) -> list[dict[str, Any]]:
    """Runs a trial with a new job made by make(fault, folder, link); nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory() as name, link_for(fault) as link:
        job: Job = make(fault, Path(name), link)
        try:
            return watch(fault, job, link, limit_s)
        finally:
            job.close()


class Quiet:
    """Waits until no other process uses the machine: at most `seconds` in all, and at most QUIET_PART_S each time."""

    def __init__(self, seconds: float = QUIET_S) -> None:
        self._left = seconds

    def came(self) -> bool:
        begin = time.monotonic()
        came = wait_until(
            lambda: machine.cores_used_by_others(0.5) <= machine.BUSY_CORES, min(self._left, QUIET_PART_S)
        )
        self._left = max(0.0, self._left - (time.monotonic() - begin))
        return came


def quiet_trial(quiet: Quiet, make: Any, fault: Fault, limit_s: float) -> list[dict[str, Any]]:
    """Like trial(), but waits first until no other process uses the machine, as long as that is allowed. "busy" in a
    fate: the trial took less than SHORT_S, and other processes were busy before or after it. Longer times are
    determined by deadlines."""
    was_quiet = quiet.came()
    fates = trial(make, fault, limit_s)
    is_short = any(each.get("seconds", limit_s) < SHORT_S for each in fates)
    is_quiet = not is_short or (was_quiet and machine.cores_used_by_others(0.5) <= machine.BUSY_CORES)
    return [{**each, "busy": not is_quiet} for each in fates]
