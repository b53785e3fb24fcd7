# SPDX-License-Identifier: Apache-2.0
"""The messages in docs/first-hour.md are those that users get: each is provoked and compared with the page."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atoll
from atoll.launch import containers
from atoll.launch.run import run
from first_hour_programs import DOCTORS, PROGRAMS, SLOW_NETWORK, Provoked
from support import run_script
from ucx_ways import ABSENT, ASKS_FOR_UCX

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-hour.md").read_text()
FENCES = re.findall(r"^### ([^\n]+)\n\n```text\n(.+?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = dict(FENCES)

ANOTHER_TORCH = """
import importlib.metadata
real = importlib.metadata.version
importlib.metadata.version = lambda name: "2.9.1" if name == "torch" else real(name)
import atoll
"""
CALLS = """
#include <iostream>
#include "atoll/{header}"
int main() try {{
  atl::{call};
}} catch (const std::exception& error) {{
  std::cerr << error.what() << std::endl;
  return 1;
}}
"""
# For optional packages that this build has: the stand-in without them, its header, and a call.
STAND_INS = {
    "A build without UCX": ("transport/ucx/no_ucx.cpp", "transport/ucx/context.h", "transport::ucx::Context::open()"),
    "A build without Redis": ("redis/no_hiredis.cpp", "redis/protocol.h", "redis::format_command({})"),
}
COMMANDS = {
    "An island without ranks": ["--island=gpu", "train.py"],
    "An island whose ranks are not numbers": ["--island=gpu:two", "train.py"],
    "An island of zero ranks": ["--island=gpu:0", "train.py"],
    "An invalid island name": ["--island=my gpus:2", "train.py"],
    "A rank in two islands": ["--island=a:0-1", "--island=b:1-2", "train.py"],
    "An island that is given twice": ["--island=a:1", "--island=a:1", "train.py"],
    "A rank in no island": ["--island=a:1-2", "train.py"],
    "An option that islands do not have": ["--island=a:1,devise=cpu", "train.py"],
    "An invalid device": ["--island=a:1,device=GPU", "train.py"],
    "A variable that the island sets itself": ["--island=a:1,env=ATOLL_DEVICE=cuda", "train.py"],
    "Islands and --nproc-per-node": ["--nproc-per-node=3", "--island=a:2", "train.py"],
    "No ranks at all": ["--nproc-per-node=0", "train.py"],
    "An invalid number of ranks": ["--nproc-per-node=two", "train.py"],
    "An invalid number of hosts": ["--nnodes=two", "train.py"],
    "A missing program": ["--island=a:1", "train.py"],
    "A missing interpreter": ["--island=a:1,python=/no/python", "train.py"],
    "A container without a runtime": ["--island=a:1,container=image", "train.py"],
}
LAUNCHES = {
    "The launcher's port is taken": ["--master-addr=127.0.0.1", "--master-port=@TAKEN@", "empty.py"],
    "The other host's command does not arrive": [
        "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=1", "--rdzv-conf=timeout=1",
        "--island=a:1", "empty.py",
    ],
    "A rank fails": ["--island=a:1", "failing.py"],
    "A rank is killed": ["--island=a:1", "killed.py"],
}  # fmt: skip
FRESH = ["Another version of PyTorch", "Python finds the source", "UCX is not installed"]


def check(title: str, said: str) -> None:
    """Checks that a line ends with the message on the page, in which an ellipsis stands for any text. The doctor's
    lines are wrapped to the width of the output."""
    shown, end = SHOWN[title], "$"
    if title in DOCTORS:
        said, shown, end = " ".join(said.split()), " ".join(shown.split()), ""
    wanted = ".*".join(re.escape(part) for part in shown.split("…"))
    assert re.search(wanted + end, said, re.MULTILINE), f"{shown}\n\nis not in\n\n{said}"


def fresh(source: str, folder: Path, **environment: str) -> str:
    """Returns what a failing `python -c source` writes, in a process that has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False, cwd=folder,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("", 0)) as server:
        yield str(server.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with three programs and the key files of Provoked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "failing.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    for name, mode in (("key", 0o600), ("key.other", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(f"{name:>32}")
        (tmp_path / name).chmod(mode)
    return tmp_path


def test_each_message_of_the_page_has_a_test() -> None:
    tested = [*FRESH, *STAND_INS, *COMMANDS, *LAUNCHES, *PROGRAMS, *SLOW_NETWORK, *DOCTORS]
    assert sorted(tested) == sorted(title for title, _ in FENCES)
    assert PAGE.count("```") == 2 * len(FENCES)


def test_another_torch(tmp_path: Path) -> None:
    check("Another version of PyTorch", fresh(ANOTHER_TORCH, tmp_path))


def test_the_source(tmp_path: Path) -> None:
    unbuilt = shutil.ignore_patterns("_build_info.py", "*.so")
    shutil.copytree(ROOT / "python" / "atoll", tmp_path / "atoll", ignore=unbuilt)
    check("Python finds the source", fresh("import atoll", tmp_path))


def test_no_ucx(tmp_path: Path) -> None:
    (tmp_path / "libucp.so.0").write_text("")
    (tmp_path / "libucx.py").write_text("raise ImportError\n")
    paths = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    said = fresh(ASKS_FOR_UCX, tmp_path, ATOLL_TRANSPORT="ucx", **paths)
    check("A build without UCX" if ABSENT[0] in said else "UCX is not installed", said)


@pytest.mark.parametrize("title", STAND_INS)
def test_stand_in(title: str, tmp_path: Path) -> None:
    source, header, call = STAND_INS[title]
    program, package = tmp_path / "program.cpp", Path(atoll.__file__).parent
    program.write_text(CALLS.format(header=header, call=call))
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-I", ROOT / "src", "-o", tmp_path / "program"]
    library = ["-L", package, "-latoll", f"-Wl,-rpath,{package}"]
    subprocess.run([*compiler, program, ROOT / "src/atoll" / source, *library], timeout=100, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    check(title, done.stderr)


@pytest.mark.parametrize("title", COMMANDS)
def test_command(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(containers.shutil, "which", lambda _: None)
    assert run(COMMANDS[title]) == 2
    check(title, capfd.readouterr().err)


@pytest.mark.parametrize("title", LAUNCHES)
def test_launch(title: str, folder: Path, taken_port: str, capfd: pytest.CaptureFixture[str]) -> None:
    status = 137 if title == "A rank is killed" else 1
    assert run([word.replace("@TAKEN@", taken_port) for word in LAUNCHES[title]]) == status
    check(title, capfd.readouterr().err)


def provoke(provoked: Provoked, folder: Path, taken_port: str) -> list[subprocess.CompletedProcess[str]]:
    """Runs the ranks; returns the finished processes."""
    meant = {"TAKEN": taken_port, "KEY": str(folder / "key"), "OPEN": str(folder / "open")}
    environment = {
        name: re.sub("@([A-Z]+)@", lambda place: meant[place[1]], value) for name, value in provoked.environment.items()
    }
    return run_script(provoked.source, provoked.ranks, environment)


@pytest.mark.parametrize("title", PROGRAMS)
def test_program(title: str, folder: Path, taken_port: str) -> None:
    ended = provoke(PROGRAMS[title], folder, taken_port)
    assert {done.returncode for done in ended} == {1}
    check(title, "".join(done.stderr for done in ended))


@pytest.mark.verify
@pytest.mark.parametrize("title", SLOW_NETWORK)
def test_slow_program(title: str, folder: Path, taken_port: str) -> None:
    """A connection may take half a minute."""
    ended = provoke(SLOW_NETWORK[title], folder, taken_port)
    assert {done.returncode for done in ended} == {1}
    check(title, "".join(done.stderr for done in ended))


@pytest.mark.parametrize("title", DOCTORS)
def test_doctor(title: str, folder: Path, taken_port: str) -> None:
    first, *_ = provoke(DOCTORS[title], folder, taken_port)
    assert first.returncode == (0 if SHOWN[title].startswith("warning") else 1)
    check(title, first.stdout + first.stderr)
