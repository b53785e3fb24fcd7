# SPDX-License-Identifier: Apache-2.0
"""Errors that `atoll run` reports before anything starts."""

import signal
import socket
from pathlib import Path

import pytest

from atoll.launch.run import run
from launching import atoll


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--island=a", "x.py"], "--island 'a': the ranks are missing: write NAME:RANKS, such as fast:2 or fast:0-1+4"),
        (["--island=a:2", "--nproc-per-node=3", "x.py"], "--nproc-per-node is 3, but the islands have 2 ranks (a: 2): "
         "write --nproc-per-node=2, or remove it"),
        (["--nproc-per-node=lots", "x.py"], "--nproc-per-node=lots: Unsupported nproc_per_node value: lots: "
         "write a number such as 2, or cpu or auto"),
        (["--nproc-per-node=0", "x.py"], "--nproc-per-node=0: a host has at least one rank"),
        (["--nnodes=a", "x.py"], "--nnodes=a: write a number such as 2, or a range such as 1:4"),
        (["--island=a:1", "x.py"], "x.py: no such file: write the path of a Python script, -m and a module, or "
         "--no-python and a program"),
        (["--island=a:1,python=no/python", "x.py"], "island 'a': python=no/python is not an executable program: write "
         "the path of an interpreter, such as python=/srv/rocm-venv/bin/python"),
        (["--no-python", "--island=a:1,python=python3", "x"], "island 'a': python=python3 has no effect with "
         "--no-python: remove one of them"),
        (["--run-path", "x.py"], "--run-path is not supported, because each rank is a separate process: remove it"),
        (["--logs-specs=own", "x.py"], "--logs-specs=own: use --log-dir, --redirects and --tee instead"),
        (["--virtual-local-rank", "--island=a:1,device=cuda", "x.py"], "--virtual-local-rank shows each rank one "
         "device as number 0, but device= numbers them: remove one of them"),
        (["--signals-to-handle=SIGTERM,SIGNOT", "x.py"], "--signals-to-handle: 'SIGNOT' is not a signal: write names "
         "such as SIGTERM,SIGINT"),
        (["--rdzv-id=a/b", "x.py"], "--rdzv-id='a/b': it is part of the job's folder names: write 1 to 100 "
         "characters without a slash"),
        (["--redirects=9", "x.py"], "--redirects=9: write 1 (stdout), 2 (stderr) or 3 (both), or one of them for each "
         "local rank, such as 0:1,1:3"),
        (["--nnodes=4:2", "x.py"], "--nnodes=4:2: write a number such as 2, or a range such as 1:4"),
        (["--nnodes=0", "x.py"], "--nnodes=0: write a number such as 2, or a range such as 1:4"),
    ],
)  # fmt: skip
def test_refused(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(arguments) == 2
    assert capfd.readouterr().err == f"atoll run: {message}\n"
    assert list(tmp_path.glob("atoll/*")) == []


def test_a_program_that_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--no-python", "--island=a:1", "no-such-program"]) == 127
    said = "atoll run: local rank 0: cannot start no-such-program: No such file or directory"
    out, err = capfd.readouterr()
    assert f"[a:0] {said}" in err
    assert f"exit code 127\n    {said}\n" in err
    assert out == ""


def test_the_other_command_never_comes(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    arguments = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j"]
    assert run([*arguments, "--rdzv-conf=join_timeout=1", "--island=a:1", "x.py"]) == 1
    said = capfd.readouterr().err
    assert "atoll run: the commands of job j could not meet at localhost:0: " in said
    assert "; check that the command of the first host is running, that all have the same --master-addr and" in said


def test_an_endpoint_without_a_port(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    assert run(["--nnodes=2", "--rdzv-endpoint=localhost", "--island=a:1", "x.py"]) == 2
    assert "atoll run: --rdzv-endpoint=localhost: the port is missing: write HOST:PORT\n" in capfd.readouterr().err


def test_an_unknown_rendezvous(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    assert run(["--nnodes=2", "--rdzv-backend=owl", "--rdzv-endpoint=h:1", "--island=a:1", "x.py"]) == 2
    assert "atoll run: --rdzv-backend=owl: The rendezvous backend 'owl' is not registered." in capfd.readouterr().err


def test_a_port_that_is_taken(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["--nnodes=2", f"--master-port={port}", "--rdzv-id=j", "--island=a:1", "x.py"]) == 1
    said = capfd.readouterr().err
    assert f"atoll run: the commands of job j could not meet at 127.0.0.1:{port}: " in said
    assert "; another program uses that port: give all commands of the job another --master-port" in said


def test_signal_handlers_are_restored(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    (tmp_path / "x.py").write_text("print('ran')")
    assert run(["--island=a:1", "x.py"]) == 0
    assert capfd.readouterr().out == "[a:0] ran\n"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_help_shows_both() -> None:
    done = atoll("run", "--help")
    assert done.returncode == 0
    assert "--island NAME:RANKS[,OPTION]..." in done.stdout
    assert "--rdzv-endpoint" in done.stdout
    assert done.stdout.startswith("usage: atoll run ")
