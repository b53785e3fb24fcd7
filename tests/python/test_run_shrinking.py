# SPDX-License-Identifier: Apache-2.0
"""`atoll run --on-failure=shrink` with programs that do not support changing groups: their environment and their
end."""

import json
import os
import signal
from pathlib import Path

import pytest

from atoll.launch import jobs
from atoll.launch.run import run
from launching import atoll, eventually, launched
from redis_server import store_options
from support import later

WAIT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
stubborn = "stubborn" in sys.argv
if stubborn:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", os.environ["RANK"], flush=True)
while stubborn and signal.sigwait([signal.SIGTERM]):
    print("asked", flush=True)
signal.pause()
"""


# Rank 0 writes invalid notices where notices belong, and both do what a rank does.
NO_NOTICE = """
import os
from datetime import timedelta
from atoll.recovering.member import Member
from atoll.recovering.notices import count_key, notice_key
member = Member.from_environment(timedelta(seconds=60))
if os.environ["RANK"] == "0":
    for text in ["{", "[]", '{"member": "0.0"}', "[" * 100000, b"\\xff"]:
        member.store.set(notice_key(member.store.add(count_key(), 1)), text)
member.ready(0, 0)
print("group", len(member.roster().seats), flush=True)
"""


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-ranks=2"], "--min-ranks=2 needs --on-failure=shrink: add that, or remove it"),
        (["--on-failure=shrink", "--min-ranks=3"], "--min-ranks=3: the job has 2 ranks: write 1 to 2"),
        (["--on-failure=shrink", "--min-ranks=0"], "--min-ranks=0: the job has 2 ranks: write 1 to 2"),
        (["--on-failure=shrink", "--nnodes=2", "--rdzv-endpoint=h:1"], "--on-failure=shrink works on one host: remove "
         "--nnodes, --master-addr, --master-port and --rdzv-* (except for --rdzv-backend=redis), or use "
         "--on-failure=restart for several hosts"),
        (["--on-failure=shrink", "--nnodes=1:2", "--rdzv-backend=redis", "--rdzv-endpoint=h:1", "--rdzv-id=x"],
         "--on-failure=shrink works on one host: remove --nnodes, --master-addr, --master-port and --rdzv-* "
         "(except for --rdzv-backend=redis), or use --on-failure=restart for several hosts"),
        (["--on-failure=shrink", "--virtual-local-rank"], "--virtual-local-rank works only with "
         "--on-failure=restart: remove it"),
        (["--on-failure=shrink", "--island=a:2", "--min-islands=1"], "--min-islands=1 works only with "
         "--on-failure=restart: use --min-ranks, or remove it"),
    ],
)  # fmt: skip
def test_refused(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--nproc-per-node=2", "x.py"]) == 2
    assert capfd.readouterr().err == f"atoll run: {message}\n"


@pytest.mark.parametrize("place", ["launcher", "redis"])
def test_ranks_get_what_other_launchers_give(tmp_path: Path, place: str) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "ATOLL_ISLAND", "ATOLL_MEMBER",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "OWN"]  # fmt: skip
    (tmp_path / "x.py").write_text(
        f"import json, os, sys\nprint(json.dumps([os.environ.get(name) for name in {names}] + sys.argv[1:]))"
    )
    words = ["--on-failure=shrink", "--island=a:1,env=OWN=1", "--island=b:1", "x.py", "--flag", "$HOME"]
    with store_options(place, tmp_path, "gets") as options:
        done = atoll("run", *options, *words)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[:6] for line in lines] == ["[a:0] ", "[b:1] "]
    rest = ["2", "2", "127.0.0.1"]
    is_agents = str(place == "launcher")
    assert json.loads(lines[0][6:]) == ["0", "0", *rest, "a", "0.0", "0", is_agents, "1", "--flag", "$HOME"]
    assert json.loads(lines[1][6:]) == ["1", "1", *rest, "b", "1.0", "0", is_agents, None, "--flag", "$HOME"]


@pytest.mark.verify
def test_a_name_in_redis_is_for_one_command(tmp_path: Path) -> None:
    """Also after a launcher was killed: the next one waits until it is known to be dead."""
    (tmp_path / "wait.py").write_text(WAIT.replace("child = ", "#"))
    with store_options("redis", tmp_path, "taken") as options:
        command = ["--on-failure=shrink", *options, "--island=a:1", "wait.py"]
        with launched(*command) as first:
            first.wait_for("ready")
            second = atoll("run", *command)
            assert second.returncode == 2, second.stderr
            assert "another job of this name is running; give this one a name of its own" in second.stderr
            first.end(signal.SIGKILL)
        with launched(*command) as third:
            third.wait_for("ready")
            assert third.end(signal.SIGTERM) == 143


def test_invalid_notices_end_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(NO_NOTICE)
    assert run(["--on-failure=shrink", "--island=a:2", "x.py"]) == 0
    printed = capfd.readouterr()
    assert printed.out.count("group 2") == 2
    assert printed.err.count("atoll run: an invalid notice in the job's store is ignored: ") == 5


def test_a_failure_is_reported(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('too large')")
    assert run(["--on-failure=shrink", "--max-restarts=5", "--island=a:2", "x.py"]) == 1
    error = capfd.readouterr().err
    assert "atoll run: rank 1 is lost: island a, pid " in error
    assert "atoll run: rank 1 failed first: island a, host " in error
    assert error.count("ValueError: too large") == 2  # as printed, and in the report


def test_log_files(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('a line')")
    assert run(["--on-failure=shrink", "--island=a:2", "--redirects=3", "--log-dir=logs", "x.py"]) == 0
    assert [path.read_text() for path in sorted(tmp_path.glob("logs/*/attempt_0/*/stdout.log"))] == ["a line\n"] * 2


@pytest.mark.parametrize("number", [later(signal.SIGINT), signal.SIGTERM])
def test_a_signal_ends_everything(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAIT)
    with launched("--on-failure=shrink", "--island=a:2", "wait.py") as job:
        job.wait_for("ready", 2)
        eventually(lambda: len(job.marked()) == 4, "two ranks and their children run")
        eventually(
            lambda: [worker.rank for worker in jobs.running_jobs()[0].workers] == [0, 1], "both ranks are recorded"
        )
        assert job.end(number, 20) == 128 + number
        job.wait_until_gone()
    assert list((tmp_path / "atoll").iterdir()) == []


def test_a_second_signal_kills(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAIT)
    with launched("--on-failure=shrink", "--shutdown-timeout=600", "--island=a:2", "wait.py", "stubborn") as job:
        job.wait_for("ready", 2)
        os.kill(job.process.pid, signal.SIGTERM)
        job.wait_for("asked", 2)
        assert job.end(signal.SIGTERM, 20) == 143
        job.wait_until_gone()


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAIT.replace("child = ", "#"))
    with launched("--on-failure=shrink", "--island=a:2", "wait.py") as job:
        job.wait_for("ready", 2)
        job.end(signal.SIGKILL)
        job.wait_until_gone()
