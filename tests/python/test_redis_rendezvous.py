# SPDX-License-Identifier: Apache-2.0
"""Jobs that a Redis server coordinates: init_method, `atoll run` and torchrun, the list of members, and running jobs
that lose the server or a host."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

import atoll
from atoll.redis.elastic import RedisBackend
from atoll.redis.members import rows
from forking import Program
from launching import TIMEOUT_S, launched
from launching import atoll as command
from redis_server import RedisServer
from support import later

QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    running = RedisServer(folder)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


def programs(folder: Path, source: str, size: int, **environment: str) -> list[Program]:
    """Returns ranks without any store except the one that their source names."""
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size), **environment}
    started = []
    for rank in range(size):
        own = folder / f"rank{rank}.{time.monotonic_ns()}"
        own.mkdir()
        started.append(Program(source, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, own))
    return started


def finished(started: list[Program]) -> list[subprocess.CompletedProcess[str]]:
    deadline = time.monotonic() + TIMEOUT_S
    try:
        return [program.finish(deadline) for program in started]
    finally:
        for program in started:
            program.kill()


def run_ranks(folder: Path, source: str, size: int, **environment: str) -> list[str]:
    done = finished(programs(folder, source, size, **environment))
    assert [one.returncode for one in done] == [0] * size, "\n".join(one.stderr for one in done)
    return [one.stdout for one in done]


TRAIN = """
import os, json, torch, torch.distributed as dist, atoll, training
dist.init_process_group("atoll", init_method=os.environ["STORE"])
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(training.network())
losses = training.train_together(model, rank, 10)
total = torch.tensor(losses, dtype=torch.float64)
dist.all_reduce(total)
if rank == 0:
    print(json.dumps((total / dist.get_world_size()).tolist()))
dist.destroy_process_group()
"""


def test_two_ranks_train_and_the_job_may_run_again(server: RedisServer, tmp_path: Path) -> None:
    import training

    alone = training.train_alone(training.network(), 2, 10)
    for _ in range(2):
        found = json.loads(run_ranks(tmp_path, TRAIN, 2, STORE=server.url("job=train"))[0])
        assert found == pytest.approx(alone, rel=1e-12)


UNNAMED = """
import os, torch.distributed as dist
try:
    dist.init_process_group("atoll", init_method=os.environ["STORE"])
except ValueError as error:
    print(error)
"""


def test_a_job_needs_a_name(server: RedisServer, tmp_path: Path) -> None:
    (said,) = run_ranks(tmp_path, UNNAMED, 1, STORE=server.url(login=":secret@"))
    assert "name this one" in said
    assert "secret" not in said


SUM = """
import os, torch, torch.distributed as dist, atoll
from torch.distributed import distributed_c10d
from atoll.redis.members import rows
dist.init_process_group("atoll")
tensor = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
store = distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
line = f"sum {tensor.unique().tolist()} of {dist.get_world_size()} through {type(store).__name__}\\n"
print(line, end="", flush=True)  # in one write: ranks share the terminal
dist.barrier()
if dist.get_rank() == 0:
    for job, _, (rank, island, *_) in rows(os.environ["ATOLL_STORE"]):
        print("member", job, rank, island, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def check_two_commands_meet(
    server: RedisServer, endpoint: str, folder: Path, *options: object, **environment: str
) -> str:
    """Checks that two commands form one job; returns what they have printed."""
    file = folder / "train.py"
    file.write_text(SUM)
    common = ["--rdzv-backend=redis", f"--rdzv-endpoint={endpoint}", "--rdzv-id=meet", "--nnodes=2", QUICK]
    with (
        launched(*common, *options, "--island=fast:1", file, **environment) as first,
        launched(*common, *options, "--island=slow:1", file, **environment) as second,
    ):
        ends = [job.end() for job in (first, second)]
        text = first.text + second.text
    assert ends == [0, 0], text
    assert text.count("sum [3.0] of 2 through RedisStore") == 2
    members = sorted(line.partition("member ")[2].split() for line in text.splitlines() if "member " in line)
    assert [rank for _, rank, _ in members] == ["0", "1"]
    assert {island for _, _, island in members} == {"fast", "slow"}
    assert all(job.startswith("meet/") for job, _, _ in members)
    assert server.ask("DBSIZE") == b":0\r\n"
    return text


@pytest.mark.parametrize("form", [later("place"), "url"])
def test_two_commands_meet(server: RedisServer, tmp_path: Path, form: str) -> None:
    check_two_commands_meet(server, server.place if form == "place" else server.url(), tmp_path)


@pytest.mark.verify
def test_torchrun_finds_it(server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SUM)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=redis",
         f"--rdzv-endpoint={server.place}", file],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum [3.0] of 2 through RedisStore") == 2


def test_the_entry_point() -> None:
    assert [point.value for point in entry_points(group="torchrun.handlers", name="redis")] == [
        "atoll._autoload:rendezvous_handler"
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rdzv-id=x"], "the server is missing"),
        (["--rdzv-endpoint={place}", "--nnodes=2"], "name this one with --rdzv-id"),
        (["--rdzv-endpoint={place}/first", "--rdzv-id=x"], 'database "first"'),
        (["--rdzv-endpoint=redis://{place}?job=y", "--rdzv-id=x"], "remove it"),
        (["--rdzv-endpoint=redis://:mistaken@{place}", "--rdzv-id=x"], "does not accept the password"),
        (["--on-failure=shrink"], "the server is missing"),
        (["--on-failure=shrink", "--rdzv-endpoint=redis://{place}?job=y"], "remove it"),
        (["--on-failure=shrink", "--rdzv-endpoint=redis://:mistaken@{place}"], "does not accept the password"),
    ],
)
def test_what_cannot_be_carried_out(server: RedisServer, tmp_path: Path, options: list[str], said: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(SUM)
    given = [option.format(place=server.place) for option in options]
    done = command("run", "--rdzv-backend=redis", *given, file)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "mistaken" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_state_is_compared_and_set(server: RedisServer) -> None:
    store = atoll.RedisStore(server.url("job=state"))
    one, two = (RedisBackend(own, timedelta(seconds=20)) for own in (store, store.clone()))
    assert one.get_state() is None
    state, token, written = one.set_state(b"first")  # type: ignore[misc]
    assert (state, written) == (b"first", True)
    assert two.get_state() == (b"first", token)
    assert two.set_state(b"second") == (b"first", token, False)
    assert two.set_state(b"second", "no token of ours") == (b"first", token, False)
    state, newer, written = two.set_state(b"second", token)  # type: ignore[misc]
    assert (state, written) == (b"second", True)
    assert one.set_state(b"third", token) == (b"second", newer, False)


def test_a_lost_server_is_waited_for_once(server: RedisServer) -> None:
    timeout = timedelta(seconds=5)
    backend = RedisBackend(atoll.RedisStore(server.url("job=waits"), timeout), timeout)
    server.kill()
    for least, most in ((4, 8), (1, 3.5)):
        begin = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match="Redis server"):
            backend.get_state()
        assert least < time.monotonic() - begin < most


def test_the_list_of_members(server: RedisServer) -> None:
    store = atoll.RedisStore(server.url("job=listed&rank=0&world_size=2"))
    for rank, score in ((0, 100.0), (1, 25.0)):
        member = {"rank": rank, "island": "a", "device": f"cuda:{rank}", "score": score, "host": "h\n", "pid": 7}
        store.publish(rank, json.dumps(member))  # type: ignore[attr-defined]
    found = [(job, cells) for job, _, cells in rows(server.url())]
    assert found == [
        ("listed", ["0", "a", "cuda:0", "1.00", "h?", "7", "1/2"]),
        ("listed", ["1", "a", "cuda:1", "0.25", "h?", "7", "1/2"]),
    ]
    shown = command("ps", f"--redis={server.place}")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[:5] for line in shown.stdout.splitlines()] == [
        ["JOB", "RANK", "ISLAND", "DEVICE", "SCORE"],
        ["listed", "0", "a", "cuda:0", "1.00"],
        ["listed", "1", "a", "cuda:1", "0.25"],
    ]
    server.kill()
    failed = command("ps", f"--redis=redis://:secret@{server.place}")
    assert failed.returncode == 1
    assert f"atoll ps: the job's store, the Redis server at redis://{server.place}/0, cannot be used" in failed.stderr
    assert "secret" not in failed.stderr


SCORES = """
import json, os, torch, torch.distributed as dist, atoll, training
from torch.utils.data import TensorDataset
from atoll.redis.members import rows
dist.init_process_group("atoll", init_method=os.environ["STORE"])
model = torch.nn.parallel.DistributedDataParallel(training.network())
data = TensorDataset(torch.randn(64, training.FEATURES, dtype=torch.float64), torch.zeros(64, dtype=torch.long))
atoll.DataLoader(data, 8, model=model, policy="minmax")
dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps([cells for _, _, cells in rows(os.environ["STORE"])]))
dist.barrier()
dist.destroy_process_group()
"""


def test_loaders_publish_what_they_have_measured(server: RedisServer, tmp_path: Path) -> None:
    found = json.loads(run_ranks(tmp_path, SCORES, 2, STORE=server.url("job=scores"))[0])
    assert [(rank, alive) for rank, *_, alive in found] == [("0", "2/2"), ("1", "2/2")]
    scores = [float(cells[3]) for cells in found]
    assert max(scores) == 1.0
    assert all(0 < score <= 1 for score in scores), found


SERVER_LOST = """
import os, sys, torch, torch.distributed as dist, atoll
from datetime import timedelta
dist.init_process_group("atoll", init_method=os.environ["STORE"], timeout=timedelta(seconds=20))
tensor = torch.ones(10)
dist.all_reduce(tensor)
print("ready", flush=True)
while tensor[0] < 1000:  # needs no store
    tensor = torch.full((10,), 1000.0 * os.path.exists(os.environ["GO"]))
    dist.all_reduce(tensor)
try:
    dist.all_reduce(torch.ones(10), group=dist.new_group([0, 1]))
    print("new group", flush=True)
except RuntimeError as error:
    print("error:", error, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_the_server_is_lost_in_a_running_job(tmp_path: Path, keeps: bool) -> None:
    """The job goes on, but its next group needs the keys."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder, ["--appendonly", "yes", "--appendfsync", "always"] if keeps else [])
    try:
        started = programs(tmp_path, SERVER_LOST, 2, STORE=server.url("job=j"), GO=str(tmp_path / "go"))
        deadline = time.monotonic() + TIMEOUT_S
        while not all(program.out.exists() and "ready" in program.out.read_text() for program in started):
            assert time.monotonic() < deadline, "the ranks do not meet"
            time.sleep(0.01)
        server.kill()
        server.start()
        (tmp_path / "go").touch()
        texts = [one.stdout for one in finished(started)]
    finally:
        server.stop()
    if keeps:
        assert all("new group" in text for text in texts), texts
    else:
        assert all('has lost the keys of job "j"' in text for text in texts), texts


GO_ON = """
import os, time, torch, torch.distributed as dist, atoll
from datetime import timedelta
dist.init_process_group("atoll", timeout=timedelta(seconds=20))
tensor = torch.ones(10)
dist.all_reduce(tensor)
print("world", dist.get_world_size(), flush=True)
while dist.get_world_size() == 2:
    dist.all_reduce(tensor)
dist.destroy_process_group()
"""


@pytest.mark.verify
@pytest.mark.parametrize("which", [0, 1])
def test_the_job_outlives_any_of_its_hosts(server: RedisServer, tmp_path: Path, which: int) -> None:
    """No agent holds the store, so whichever is lost, the other goes on alone."""
    file = tmp_path / "train.py"
    file.write_text(GO_ON)
    common = ["--rdzv-backend=redis", f"--rdzv-endpoint={server.place}", "--rdzv-id=hosts", "--nnodes=1:2",
              "--max-restarts=3", "--rdzv-conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=2",
              file]  # fmt: skip
    with launched(*common, ATOLL_HEARTBEAT="2") as first, launched(*common, ATOLL_HEARTBEAT="2") as second:
        jobs = [first, second]
        for job in jobs:
            job.wait_for("world 2")
        lost, stays = jobs[which], jobs[1 - which]
        os.kill(lost.process.pid, signal.SIGKILL)
        stays.wait_for("world 1")
        assert stays.end() == 0, stays.text
