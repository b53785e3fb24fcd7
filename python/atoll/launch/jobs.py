# SPDX-License-Identifier: Apache-2.0
"""The jobs that this user started on this host: one folder for each `atoll run`, with its state as JSON."""

import contextlib
import json
import os
import shutil
import signal
import stat
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

from atoll.launch import LaunchError
from atoll.launch.processes import is_running, kill_groups, start_time, wait_until_gone

_KILL_TIMEOUT_S = 5


@dataclass
class WorkerState:
    """One running local rank; `started` is that of processes.start_time()."""

    rank: int
    local_rank: int
    island: str
    pid: int
    started: int


@dataclass
class Job:
    """One `atoll run`: `pid` and `started` are the launcher's, `created` is in seconds since 1970, `state` is
    "joining", "running" or "stopping", `islands` the number of local ranks of each island."""

    id: str
    pid: int
    started: int
    created: float
    script: str
    islands: dict[str, int]
    state: str = "joining"
    workers: list[WorkerState] = field(default_factory=list)


def jobs_folder() -> Path:
    """Returns the folder of jobs, which is made if needed. Raises LaunchError unless only this user can use it."""
    user = os.getuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(f"/tmp/atoll-{user}")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == user:
        folder = Path(runtime) / "atoll"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} is not a folder that only user {user} can use: remove it, or set XDG_RUNTIME_DIR to your "
            "own folder"
        )
    return folder


class JobRecord:
    """This process's entry: `folder` is for files of the job, and is deleted by remove(), after which nothing more is
    written. Thread-safe."""

    def __init__(self, identifier: str, script: str, islands: dict[str, int]) -> None:
        pid = os.getpid()
        self.job = Job(identifier, pid, start_time(pid) or 0, time.time(), script, islands)
        self.folder = jobs_folder() / f"{quote(identifier, safe='')[:100]}.{pid}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self._lock = threading.Lock()
        self._is_removed = False
        self._write()

    def set_state(self, state: str) -> None:
        self.job.state = state
        self._write()

    def set_workers(self, workers: list[WorkerState]) -> None:
        """Records that the job runs, with these local ranks."""
        self.job.workers = workers
        self.set_state("running")

    def leave_out(self, island: str) -> None:
        """Records that the job continues without this island."""
        del self.job.islands[island]
        self._write()

    def remove(self) -> None:
        with self._lock:
            self._is_removed = True
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self) -> None:
        with self._lock:
            if self._is_removed:
                return
            partial = self.folder / "job.partial"
            partial.write_text(json.dumps(asdict(self.job)), encoding="utf-8")
            partial.replace(self.folder / "job.json")


def _read(folder: Path) -> Job | None:
    try:
        found = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        found["workers"] = [WorkerState(**worker) for worker in found["workers"]]
        return Job(**found)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def running_jobs() -> list[Job]:
    """Returns the jobs whose launcher is running, oldest first. Leftovers of other jobs are removed."""
    jobs = []
    for folder in jobs_folder().iterdir():
        job = _read(folder)
        if job is not None and is_running(job.pid, job.started):
            jobs.append(job)
            continue
        pid = folder.name.rpartition(".")[2]
        is_being_made = job is None and pid.isdigit() and start_time(int(pid)) is not None
        if not is_being_made:
            shutil.rmtree(folder, ignore_errors=True)
    return sorted(jobs, key=lambda job: (job.created, job.pid))


def choose_jobs(identifier: str | None) -> list[Job]:
    """Returns the jobs called `identifier` (one for each command that joined), or the only job on this host."""
    jobs = running_jobs()
    known = ", ".join(dict.fromkeys(job.id for job in jobs))
    if identifier is None:
        if not jobs:
            raise LaunchError("you have no running job on this host")
        if len({job.id for job in jobs}) > 1:
            raise LaunchError(f"several jobs are running: name one of {known}")
        return jobs
    found = [job for job in jobs if job.id == identifier]
    if not found:
        raise LaunchError(f"no job {identifier!r} is running here; " + (f"running: {known}" if known else "none is"))
    return found


def stop_job(job: Job, grace_s: float) -> str:
    """Ends the job with SIGTERM, and after `grace_s` with SIGKILL, and returns how it ended. Takes at most `grace_s`
    plus 5 s."""
    with contextlib.suppress(ProcessLookupError):
        if is_running(job.pid, job.started):
            os.kill(job.pid, signal.SIGTERM)
    if wait_until_gone(job.pid, job.started, grace_s):
        return f"job {job.id} has stopped"
    kill_groups(worker.pid for worker in job.workers if is_running(worker.pid, worker.started))
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.pid, signal.SIGKILL)
    if not wait_until_gone(job.pid, job.started, _KILL_TIMEOUT_S):
        raise LaunchError(f"job {job.id}: process {job.pid} did not end even after SIGKILL: check the system")
    running_jobs()
    return f"job {job.id} did not stop within {grace_s:g} s and was killed"
