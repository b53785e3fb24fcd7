# SPDX-License-Identifier: Apache-2.0
"""Trainings under `atoll run` that lose and gain ranks, islands and hosts: they go on with the losses of an
undisturbed training, and each sample is used once."""

import json
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elastic_training
from elastic_training import BATCH, STEPS, check_history
from launching import free_port, launched
from redis_server import RedisServer

SCRIPT = elastic_training.__file__


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


def islands(*texts: str) -> list[str]:
    return [f"--island={text},device=cpu" for text in texts]


def program(folder: Path, epochs: int, *faults: dict[str, Any]) -> list[str]:
    return [SCRIPT, str(folder), str(epochs), json.dumps(faults)]


class Hosts:
    """The commands of one job on this machine. The first one holds the list of members, unless `server` does."""

    def __init__(self, nodes: str, *options: str, server: RedisServer | None = None) -> None:
        backend, place = ("redis", server.place) if server else ("c10d", f"127.0.0.1:{free_port()}")
        self._common = [
            f"--nnodes={nodes}", "--local-addr=127.0.0.1", f"--rdzv-backend={backend}", "--rdzv-id=j",
            f"--rdzv-endpoint={place}", *options,
        ]  # fmt: skip

    def command(self, island: str, *training: str, is_first: bool = False) -> list[str]:
        settings = f"--rdzv-conf=is_host={is_first},last_call_timeout=1,keep_alive_max_attempt=3"
        return [*self._common, settings, *islands(island), *training]


def starts(folder: Path, epochs: int) -> list[tuple[int, int]]:
    """Checks a training; returns the first step and the number of ranks of each attempt."""
    return [(begin["start"], begin["ranks"]) for begin in check_history(folder, epochs).values()]


@pytest.mark.verify
def test_a_rank_is_killed_and_then_its_island_is_lost(tmp_path: Path) -> None:
    faults = [
        {"attempt": 0, "step": 8, "island": "b", "do": "kill"},
        {"attempt": 1, "step": 11, "island": "b", "do": "kill"},
    ]
    options = ["--max-restarts=1", "--min-islands=1", *islands("a:1", "b:1")]
    with launched(*options, *program(tmp_path, 2, *faults)) as job:
        assert job.end(timeout=110) == 0, job.text
    begins = check_history(tmp_path, 2)
    assert [(begin["start"], begin["ranks"]) for begin in begins.values()] == [(0, 2), (6, 2), (9, 1)]
    assert begins[0]["shares"] != begins[1]["shares"]
    said = re.findall(r"atoll run: (rank \d failed first: island \w+), .*, ended by SIGKILL: (.*)", job.text)
    assert said == [
        ("rank 1 failed first: island b", "restarting (1 of 1 restarts)"),
        ("rank 1 failed first: island b", "island b has failed 2 times: restarting without it"),
    ]


@pytest.mark.verify
def test_a_new_plan_for_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt measures the cost of a sample on its ranks: the slow one gets fewer samples, with two others and
    with one."""
    monkeypatch.setenv("TEST_PACES", json.dumps({"a": 0.001, "b": 0.001, "slow": 0.005}))
    faults = [{"attempt": attempt, "step": 5, "island": "b", "do": "kill"} for attempt in (0, 1)]
    options = ["--max-restarts=1", "--min-islands=1", *islands("a:1", "b:1", "slow:1")]
    with launched(*options, *program(tmp_path, 1, *faults)) as job:
        assert job.end(timeout=110) == 0, job.text
    first, again, last = (begin["shares"] for begin in check_history(tmp_path, 1).values())
    for shares in (first, again):
        assert (len(shares), sum(shares)) == (3, BATCH)
        assert shares[2] < min(shares[:2]), shares
    assert (len(last), sum(last)) == (2, BATCH)
    assert last[1] < last[0] > max(first[:2]), (first, last)


@pytest.fixture(params=["c10d", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | None]:
    if request.param == "c10d":
        yield None
        return
    folder = tmp_path / "redis"
    folder.mkdir()
    running = RedisServer(folder)
    yield running
    running.stop()


@pytest.mark.verify
def test_a_host_joins_and_is_lost(tmp_path: Path, server: RedisServer | None) -> None:
    faults = [
        {"attempt": 0, "step": 5, "do": "hold"},
        {"attempt": 1, "step": 8, "island": "b", "do": "hold"},
    ]
    hosts, training = Hosts("1:2", server=server), program(tmp_path, 2, *faults)
    with launched(*hosts.command("a:1", *training, is_first=True)) as stays:
        stays.wait_for("hold at step 5")
        with launched(*hosts.command("b:1", *training)) as comes:
            comes.wait_for("hold at step 8")
            comes.end(signal.SIGKILL)
            assert stays.end() == 0, stays.text
    assert starts(tmp_path, 2) == [(0, 1), (3, 2), (6, 1)]
    assert "atoll run: a rank of another command was lost: restarting" in stays.text


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_a_rank_is_killed_every_20_steps(tmp_path: Path) -> None:
    chance = random.Random(3)
    epochs, kills = 20, 9
    assert epochs * STEPS == 200
    faults = [
        {"attempt": number, "step": 20 * (number + 1) - chance.randrange(3), "rank": chance.randrange(3), "do": "kill"}
        for number in range(kills)
    ]
    print(faults)
    command = ["--max-restarts=9", *islands("a:2", "b:1"), *program(tmp_path, epochs, *faults)]
    with launched(*command) as job:
        assert job.end(timeout=380) == 0, job.text
    begins = check_history(tmp_path, epochs)
    assert len(begins) == kills + 1


@pytest.mark.verify
def test_a_host_that_keeps_failing_leaves(tmp_path: Path) -> None:
    faults = [
        {"attempt": 0, "step": 5, "do": "hold"},
        {"step": 5, "island": "b", "do": "kill"},
    ]
    hosts, training = Hosts("1:2", "--max-restarts=1"), program(tmp_path, 2, *faults)
    with launched(*hosts.command("a:1", *training, is_first=True)) as stays:
        stays.wait_for("hold at step 5")
        with launched(*hosts.command("b:1", *training)) as fails:
            assert fails.end() == 128 + signal.SIGKILL, fails.text
        assert stays.end() == 0, stays.text
    assert starts(tmp_path, 2) == [(0, 1), (3, 2), (3, 2), (3, 1)]


@pytest.mark.verify
def test_a_spare_takes_the_place_of_a_lost_host(tmp_path: Path) -> None:
    hosts = Hosts("2:2", "--max-restarts=1")
    training = program(tmp_path, 2, {"attempt": 0, "step": 8, "island": "b", "do": "hold"})
    with (
        launched(*hosts.command("a:1", *training, is_first=True)) as stays,
        launched(*hosts.command("b:1", *training)) as lost,
    ):
        lost.wait_for("hold at step 8")
        with launched(*hosts.command("c:1", *training)) as spare:
            spare.wait_for("job j: 1 local rank")
            lost.end(signal.SIGKILL)
            assert spare.end() == 0, spare.text
        assert stays.end() == 0, stays.text
    assert starts(tmp_path, 2) == [(0, 2), (6, 2)]


@pytest.mark.verify
def test_the_list_of_members_is_lost(tmp_path: Path) -> None:
    hosts = Hosts("1:2")
    training = program(tmp_path, 2, {"island": "a", "step": 5, "do": "hold"})
    with launched(*hosts.command("a:1", *training, is_first=True)) as holds:
        holds.wait_for("hold at step 5")
        with launched(*hosts.command("b:1", *training)) as other:
            holds.wait_for("hold at step 5", count=2)
            holds.end(signal.SIGKILL)
            assert other.end() == 1, other.text
    assert "atoll run: the commands of job j have lost each other: " in other.text


@pytest.mark.verify
def test_hosts_need_no_shared_folder(tmp_path: Path) -> None:
    """The joining host's own folder holds an older state, or none."""
    faults = [
        {"attempt": 0, "step": 5, "do": "hold"},
        {"attempt": 1, "step": 8, "island": "b", "do": "kill"},
    ]
    hosts, training = Hosts("1:2"), program(tmp_path, 2, *faults)
    with launched(*hosts.command("a:1,env=OWN_FOLDER=a", *training, is_first=True)) as first:
        first.wait_for("hold at step 5")
        with launched(*hosts.command("b:1,env=OWN_FOLDER=b", *training)) as second:
            assert second.end() == 0, second.text
        assert first.end() == 0, first.text
    (begin, again, last) = starts(tmp_path, 2)
    assert (begin, again) == ((0, 1), (3, 2))
    assert last == (6, 2)
