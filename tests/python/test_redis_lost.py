# SPDX-License-Identifier: Apache-2.0
"""The Redis server of a job is lost under `atoll run`: the job goes on, or ends soon with an error that names it."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launching import Launched, launched
from redis_server import RedisServer
from support import later

KEEPS = ["--appendonly", "yes", "--appendfsync", "always"]
AWAY_S = 3  # the time for which launchers wait for their server
BOUND_S = 40  # from its loss to the end of every command, most of which is stopping ranks on a busy machine
PROGRAM = """
import os, torch, torch.distributed as dist, atoll
dist.init_process_group("atoll")
tensor = torch.ones(10)
dist.all_reduce(tensor)
print("ready", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while tensor[0] < 1000:  # needs no store
    tensor = torch.full((10,), 1000.0 * os.path.exists(os.environ["GO"]))
    dist.all_reduce(tensor)
print("done", flush=True)
os._exit(0)
"""
COMMANDS = {
    "restart": [["--nnodes=2", "--island=fast:1"], ["--nnodes=2", "--island=slow:1"]],
    "shrink": [["--on-failure=shrink", "--island=fast:1", "--island=slow:1"]],
}


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    running = RedisServer(folder, KEEPS if request.node.callspec.params["fate"] == "keeps" else [])
    yield running
    running.stop()


def of_launchers(job: Launched, text: str) -> bool:
    """Returns whether the command itself printed it, whose lines have no island."""
    return any(text in line and not re.match(r"\[(fast|slow):\d+\] ", line) for line in job.text.splitlines())


@pytest.mark.parametrize(
    ("fate", "mode"),
    [
        later("keeps", "restart"), later("keeps", "shrink"),
        later("loses", "restart"), ("loses", "shrink"),
        later("stays away", "restart"), later("stays away", "shrink"),
    ],
)  # fmt: skip
def test_the_server_is_lost(server: RedisServer, tmp_path: Path, fate: str, mode: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    settings = f"--rdzv-conf=read_timeout={AWAY_S if fate == 'stays away' else 60},last_call_timeout=1"
    common = ["--rdzv-backend=redis", f"--rdzv-endpoint={server.place}", "--rdzv-id=lost", settings]
    with ExitStack() as stack:
        jobs = [stack.enter_context(launched(*common, *own, file, GO=str(tmp_path / "go"))) for own in COMMANDS[mode]]
        for job in jobs:
            job.wait_for("ready 0", 2 // len(jobs))
        server.kill()
        lost = time.monotonic()
        if fate != "stays away":
            for job in jobs:
                while not of_launchers(job, "trying again"):
                    job.wait_for("trying again", job.text.count("trying again") + 1)
            server.start()
        if fate == "keeps":
            (tmp_path / "go").touch()
        ends = [job.end() for job in jobs]
        took = time.monotonic() - lost
        for job in jobs:
            job.wait_until_gone()
    text = "".join(job.text for job in jobs)
    if fate == "keeps":
        assert ends == [0] * len(jobs), text
        assert text.count("done") == 2
        return
    assert all(ends), text
    assert (AWAY_S - 1 if fate == "stays away" else 0) < took < BOUND_S, text
    if mode == "restart":
        assert all(of_launchers(job, "atoll run: job lost cannot continue: ") for job in jobs), text
    reason = "cannot be used" if fate == "stays away" else 'has lost the keys of job "lost'
    for job in jobs:
        told = [line for line in job.text.splitlines() if line.startswith("atoll run: ") and reason in line]
        assert told, text
        assert f"the Redis server at redis://{server.place}/0" in told[0]


@pytest.mark.parametrize("fate", ["stays away"])
def test_ranks_of_one_command_finish_without_the_server(server: RedisServer, tmp_path: Path, fate: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    rendezvous = ["--rdzv-backend=redis", f"--rdzv-endpoint={server.place}", "--rdzv-id=alone",
                  f"--rdzv-conf=read_timeout={AWAY_S}"]  # fmt: skip
    islands = ["--island=fast:1", "--island=slow:1"]
    with launched(*rendezvous, *islands, file, GO=str(tmp_path / "go")) as job:
        job.wait_for("ready 0", 2)
        server.kill()
        (tmp_path / "go").touch()
        lost = time.monotonic()
        ended = job.end()
        took = time.monotonic() - lost
        job.wait_until_gone()
    assert ended == 0, job.text
    assert job.text.count("done") == 2
    assert took < BOUND_S, (took, job.text)
