# SPDX-License-Identifier: Apache-2.0
"""However `atoll run` ends, its ranks and the processes that they started soon end, too. Also `atoll ps` and `atoll
stop`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.launch import LaunchError, jobs, processes
from launching import atoll, eventually, free_port, launched
from support import later

# Each rank starts a child process and then waits forever.
WAIT = """
import os, subprocess, signal, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
stubborn = "stubborn" in sys.argv
if stubborn:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", os.environ["RANK"], flush=True)
while stubborn and signal.sigwait([signal.SIGTERM]):
    print("asked", flush=True)
signal.pause()
"""
SOON_S = 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime" / "atoll"


@pytest.fixture
def wait_script(tmp_path: Path) -> Path:
    path = tmp_path / "wait.py"
    path.write_text(WAIT)
    return path


# Proves S-2.
@pytest.mark.parametrize("number", [signal.SIGINT, later(signal.SIGTERM)])
def test_a_signal_ends_everything(number: signal.Signals, folder: Path, wait_script: Path) -> None:
    with launched("--island=a:2", "--island=b:1", wait_script) as job:
        job.wait_for("ready", 3)
        eventually(lambda: len(job.marked()) == 6, "three ranks and their children run")
        assert job.end(number, SOON_S) == 128 + number
        assert f"atoll run: ended by {number.name}: all ranks of this command were stopped\n" in job.text
        job.wait_until_gone()
    assert list(folder.iterdir()) == []


def test_an_ignored_signal_stays_ignored(folder: Path, wait_script: Path) -> None:
    with launched("--island=a:1", wait_script, ignored=[signal.SIGHUP]) as job:
        job.wait_for("ready")
        os.kill(job.process.pid, signal.SIGHUP)
        assert job.end(signal.SIGTERM, SOON_S) == 143
        assert "SIGHUP" not in job.text


def test_stubborn_ranks_are_killed(folder: Path, wait_script: Path) -> None:
    with launched("--shutdown-timeout=1", "--island=a:2", wait_script, "stubborn") as job:
        job.wait_for("ready", 2)
        assert job.end(signal.SIGTERM, SOON_S) == 143
        job.wait_until_gone()


def test_a_second_signal_leaves_nothing(folder: Path, wait_script: Path) -> None:
    with launched("--shutdown-timeout=600", "--island=a:2", wait_script, "stubborn") as job:
        job.wait_for("ready", 2)
        os.kill(job.process.pid, signal.SIGTERM)
        job.wait_for("asked", 2)
        job.wait_for("atoll run: got SIGTERM: stopping the ranks; send it again to kill them\n")
        eventually(lambda: [found.state for found in jobs.running_jobs()] == ["stopping"], "the state is printed")
        assert job.end(signal.SIGTERM, SOON_S) == 143
        job.wait_until_gone()
    assert list(folder.iterdir()) == []


# Proves S-1.
def test_a_failure_ends_what_the_others_started(folder: Path, tmp_path: Path) -> None:
    source = WAIT.replace("\nsignal.pause()", "\nif os.environ['RANK'] == '0': sys.exit(4)\nsignal.pause()", 1)
    (tmp_path / "fail.py").write_text(source)
    with launched("--island=a:1", "--island=b:1", tmp_path / "fail.py") as job:
        assert job.end(timeout=SOON_S) == 4
        job.wait_until_gone()


def recorded(ranks: int) -> jobs.Job:
    """Returns the only job once its launcher has recorded its ranks, which may be after their first output."""
    eventually(lambda: [len(job.workers) for job in jobs.running_jobs()] == [ranks], "the ranks are recorded")
    (found,) = jobs.running_jobs()
    return found


# Proves S-2.
def test_ranks_die_with_their_launcher(folder: Path, wait_script: Path) -> None:
    with launched("--island=a:2", wait_script) as job:
        job.wait_for("ready", 2)
        ranks = [worker.pid for worker in recorded(2).workers]
        assert job.end(signal.SIGKILL, SOON_S) == -signal.SIGKILL
        eventually(lambda: not any(processes.start_time(pid) for pid in ranks), "the ranks end")
        # The entry that the dead launcher left is removed.
        assert len(list(folder.iterdir())) == 1
        assert jobs.running_jobs() == []
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_signal_while_waiting_for_others(node_rank: int, folder: Path, wait_script: Path) -> None:
    common = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", f"--node-rank={node_rank}"]
    with launched(*common, "--island=a:1", wait_script) as job:
        job.wait_for("1 local rank, a: 1")
        assert [found.state for found in jobs.running_jobs()] == ["joining"]
        began = time.monotonic()
        assert job.end(signal.SIGTERM, SOON_S) == 143
        assert time.monotonic() - began < 10
    assert list(folder.iterdir()) == []


DEAF = """
import ctypes, signal
from atoll.launch.ending import EndingOnSignal
def say(*words): print(*words, flush=True)
with EndingOnSignal([signal.SIGTERM], lambda number: say(number.name), lambda: 0.1, lambda: say("last resort")):
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    told = False
    while True:
        try:
            if not told:
                told = True  # first: the signal may come as soon as the line is printed
                say("deaf")
            library.pthread_mutex_lock(mutex)
        except Exception as error:
            caught = error
"""


def test_a_launcher_that_waits_in_a_library_ends() -> None:
    """A second lock of the same mutex waits forever, and no signal interrupts it."""
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "deaf\n"
        process.send_signal(signal.SIGTERM)
        try:
            rest, _ = process.communicate(timeout=SOON_S)
        finally:
            process.kill()
    assert process.returncode == 143
    assert sorted(rest.splitlines()) == ["SIGTERM", "last resort"]


def test_ps_and_stop(folder: Path, wait_script: Path) -> None:
    with launched("--rdzv-id=first", "--island=fast:0-0+2", "--island=slow:1", wait_script) as job:
        job.wait_for("ready", 3)
        found = recorded(3)
        pids = ",".join(str(worker.pid) for worker in found.workers)
        assert {int(pid) for pid in pids.split(",")} < set(job.marked())
        listed = atoll("ps")
        assert listed.returncode == 0, listed.stderr
        header, row = (line.split() for line in listed.stdout.splitlines())
        assert header == ["ID", "PID", "ISLANDS", "RANKS", "PIDS", "STATE", "AGE", "SCRIPT"]
        launcher, age = str(job.process.pid), row[7]
        assert row == ["first", launcher, "fast:2", "slow:1", "0,1,2", pids, "running", age, str(wait_script)]
        assert [worker.island for worker in found.workers] == ["fast", "slow", "fast"]
        stopped = atoll("stop")
        assert (stopped.returncode, stopped.stdout) == (0, "job first has stopped\n")
        assert job.end() == 143
        job.wait_until_gone()
    empty = atoll("stop")
    assert (empty.returncode, empty.stderr) == (1, "atoll stop: you have no running job on this host\n")


def test_stop_kills_a_launcher_that_does_not_listen(folder: Path, wait_script: Path) -> None:
    with launched("--island=a:2", wait_script) as job:
        job.wait_for("ready", 2)
        (found,) = jobs.running_jobs()
        os.kill(job.process.pid, signal.SIGSTOP)
        text = f"job {found.id} did not stop within 0.1 s and was killed"
        # A zombie counts as ended.
        assert jobs.stop_job(found, 0.1) == text
        job.wait_until_gone()
        assert list(folder.iterdir()) == []


class Sleeper:
    """A process for which entries are written."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.communicate(b"\n")


def entry(folder: Path, identifier: str, pid: int, started: int) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    job = {"id": identifier, "pid": pid, "started": started, "created": 0, "script": "x", "islands": {}}
    path = folder / f"{identifier}.{pid}"
    path.mkdir()
    (path / "job.json").write_text(json.dumps({**job, "state": "running", "workers": []}))
    return path


def test_a_reused_process_id_is_not_a_job(folder: Path) -> None:
    with Sleeper() as one, Sleeper() as other:
        kept = entry(folder, "kept", one.pid, processes.start_time(one.pid) or 0)
        stale = entry(folder, "stale", other.pid, 1)
        assert [job.id for job in jobs.running_jobs()] == ["kept"]
        assert kept.exists()
        assert not stale.exists()
    assert jobs.running_jobs() == []


def test_an_unfinished_entry_is_kept(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"new.{os.getpid()}").mkdir()
    (folder / "broken.job").mkdir()
    assert jobs.running_jobs() == []
    assert [path.name for path in folder.iterdir()] == [f"new.{os.getpid()}"]


def test_nothing_is_written_after_the_end(folder: Path) -> None:
    record = jobs.JobRecord("late", "x", {})
    assert [job.id for job in jobs.running_jobs()] == ["late"]
    record.remove()
    record.set_state("stopping")
    assert list(folder.iterdir()) == []


def test_which_job_to_stop(folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"^no job 'x' is running here; none is$"):
        jobs.choose_jobs("x")
    with Sleeper() as one, Sleeper() as other:
        for identifier, process in (("one", one), ("other", other)):
            entry(folder, identifier, process.pid, processes.start_time(process.pid) or 0)
        with pytest.raises(LaunchError, match=r"^several jobs are running: name one of (one, other|other, one)$"):
            jobs.choose_jobs(None)
        with pytest.raises(LaunchError, match=r"^no job 'x' is running here; running: (one, other|other, one)$"):
            jobs.choose_jobs("x")
        assert [job.pid for job in jobs.choose_jobs("other")] == [other.pid]


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_of_others_is_refused(kind: str, folder: Path, tmp_path: Path) -> None:
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o750)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.write_text("")
    done = atoll("ps")
    assert done.returncode == 1
    assert done.stderr == (
        f"atoll ps: {folder} is not a folder that only user {os.getuid()} can use: remove it, or set XDG_RUNTIME_DIR "
        "to your own folder\n"
    )


def test_without_a_runtime_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs.jobs_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "missing"))
    assert jobs.jobs_folder() == Path(f"/tmp/atoll-{os.getuid()}")
