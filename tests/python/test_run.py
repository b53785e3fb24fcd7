# SPDX-License-Identifier: Apache-2.0
"""`atoll run` as a command: the environment of each rank, how commands join, and the output when a rank fails."""

import json
import os
import pty
import re
import sys
import venv
from pathlib import Path

import pytest

from forking import Program, module_source
from launching import TIMEOUT_S, atoll, free_port, launched

TELL = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ATOLL_ISLAND", "ATOLL_DEVICE", "EXTRA", "OMP_NUM_THREADS")
found = {name: os.environ[name] for name in names if name in os.environ}
print(json.dumps(found | {"arguments": sys.argv[1:], "prefix": sys.prefix}))
"""

SUM = """
import torch, torch.distributed as dist, atoll
dist.init_process_group("atoll")
tensor = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
print("sum", tensor.unique().tolist(), "of", dist.get_world_size(), "in", len(atoll.islands()), "islands")
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


def script(folder: Path, source: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def told(text: str) -> dict[int, dict[str, object]]:
    """Returns what the ranks running TELL have printed, by rank."""
    found = [json.loads(line[line.index("{") :]) for line in text.splitlines() if "{" in line]
    return {int(entry["RANK"]): entry for entry in found}


def test_each_rank_gets_its_island(tmp_path: Path) -> None:
    islands = ["--island=fast:0-0+2,device=cuda,env=EXTRA=a,,b", "--island", "slow:1,device=cpu,env=OMP_NUM_THREADS=3"]
    # A script's own options stay its own.
    done = atoll("run", "--rdzv-id=job 1", *islands, script(tmp_path, TELL), "--island", "$HOME", "--", "-m")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "atoll run: job job 1: 3 local ranks, fast: 2, slow: 1\n"
    common = {"WORLD_SIZE": "3", "arguments": ["--island", "$HOME", "--", "-m"], "prefix": sys.prefix}
    fast = {"ATOLL_ISLAND": "fast", "EXTRA": "a,b", "OMP_NUM_THREADS": "1"}
    slow = {"ATOLL_ISLAND": "slow", "ATOLL_DEVICE": "cpu", "OMP_NUM_THREADS": "3"}
    assert told(done.stdout) == {
        0: {"RANK": "0", "LOCAL_RANK": "0", "ATOLL_DEVICE": "cuda:0", **fast, **common},
        1: {"RANK": "1", "LOCAL_RANK": "1", **slow, **common},
        2: {"RANK": "2", "LOCAL_RANK": "2", "ATOLL_DEVICE": "cuda:1", **fast, **common},
    }
    assert sorted(line.split(" ")[0] for line in done.stdout.splitlines()) == ["[fast:0]", "[fast:2]", "[slow:1]"]
    assert list((tmp_path / "runtime" / "atoll").iterdir()) == []


def test_two_python_environments(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    interpreter = tmp_path / "other/bin/python"
    done = atoll("run", "--island=a:1", f"--island=b:1,python={interpreter}", script(tmp_path, TELL))
    assert done.returncode == 0, done.stderr
    assert [told(done.stdout)[rank]["prefix"] for rank in (0, 1)] == [sys.prefix, str(tmp_path / "other")]


def test_two_commands_join_one_job(tmp_path: Path) -> None:
    common = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    file = script(tmp_path, TELL)
    with launched(*common, "--node-rank=1", "--island=slow:1", file) as second:
        first = atoll("run", *common, "--node-rank=0", "--island=fast:2", "--island=mid:1", file)
        assert first.returncode == 0, first.stderr
        assert second.end() == 0, second.text
    found = told(first.stdout + second.text)
    assert [(found[rank]["ATOLL_ISLAND"], found[rank]["LOCAL_RANK"]) for rank in range(4)] == [
        ("fast", "0"), ("fast", "1"), ("mid", "2"), ("slow", "0"),
    ]  # fmt: skip
    assert {entry["WORLD_SIZE"] for entry in found.values()} == {"4"}
    assert "[slow:3] {" in second.text


def test_unequal_islands_reduce_together(tmp_path: Path) -> None:
    done = atoll("run", "--island=fast:2", "--island=slow:1", script(tmp_path, SUM))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{name}] sum [6.0] of 3 in 2 islands" for name in ("fast:0", "fast:1", "slow:2")
    ]


# Proves S-4.
def test_without_islands_it_is_torchrun(tmp_path: Path) -> None:
    script(tmp_path, TELL)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = atoll("run", "--nproc-per-node=2", "-m", "train", "x", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("{") for line in done.stdout.splitlines())
    common = {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "arguments": ["x"], "prefix": sys.prefix}
    assert told(done.stdout) == {rank: {"RANK": str(rank), "LOCAL_RANK": str(rank), **common} for rank in (0, 1)}


FAIL = """
import os, select, sys
fifo, rank = sys.argv[1], os.environ["RANK"]
if rank == "2":
    with open(fifo, "w") as stream:
        stream.write(str(os.getpid()))
    print("the cause", file=sys.stderr, flush=True)
    os._exit(3)
if rank == "0":
    with open(fifo) as stream:
        try:
            select.select([os.pidfd_open(int(stream.read()))], [], [])
        except ProcessLookupError:
            pass
    sys.exit("the consequence")
import signal
signal.pause()
"""


# Proves S-1.
def test_the_first_failure_is_reported_first(tmp_path: Path) -> None:
    """Rank 0 fails because rank 2 did, before the launcher looks, so only the times of their ends distinguish them."""
    os.mkfifo(tmp_path / "fifo")
    islands = ["--island=fast:2", "--island=slow:1", "--monitor-interval=3"]
    done = atoll("run", *islands, script(tmp_path, FAIL), tmp_path / "fifo")
    assert done.returncode == 3
    report = done.stderr[done.stderr.index("atoll run: rank") :].splitlines()
    assert re.fullmatch(
        r"atoll run: rank 2 failed first: island slow, host \S+, local rank 2, pid \d+, exit code 3", report[0]
    )
    assert report[1] == "    the cause"
    assert re.fullmatch(r"atoll run: then rank 0: island fast, pid \d+, exit code 1: the consequence", report[2])
    assert re.fullmatch(r"atoll run: then rank 1: island fast, pid \d+, ended by SIGTERM", report[3])
    assert len(report) == 4


RECORD = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("recorded")
try:
    main()
except ValueError:
    sys.exit(5)
"""


def test_a_recorded_exception_is_shown(tmp_path: Path) -> None:
    done = atoll("run", "--island=a:1", script(tmp_path, RECORD))
    assert done.returncode == 5
    report = done.stderr[done.stderr.index("atoll run: rank 0 failed first") :]
    assert "    ValueError: recorded\n" in report
    assert "    Traceback (most recent call last):\n" in report


RESTART = """
import os, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, end="")
sys.exit(attempt == "0")
"""


def test_restarts(tmp_path: Path) -> None:
    done = atoll("run", "--max-restarts=1", "--island=a:1", script(tmp_path, RESTART))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[a:0] attempt 0\n[a:0] attempt 1\n"


NOISE = """
import os
for number in range(2000):
    for target in (1, 2):
        text = b"%d:%s|\\n" % (number, b"x" * (number * 7 % 90))
        half = len(text) // 2
        os.write(target, text[:half])
        os.write(target, text[half:])
os.write(1, b"last")
"""


# Proves S-3.
def test_lines_are_neither_torn_nor_lost(tmp_path: Path) -> None:
    done = atoll("run", "--island=a:2", "--island=b:1", script(tmp_path, NOISE))
    assert done.returncode == 0
    lines = [f"{number}:{'x' * (number * 7 % 90)}|" for number in range(2000)]
    for stream, expected in ((done.stdout, [*lines, "last"]), (done.stderr.partition("\n")[2], lines)):
        found: dict[str, list[str]] = {}
        for line in stream.splitlines():
            prefix, _, rest = line.partition(" ")
            found.setdefault(prefix, []).append(rest)
        assert found == {"[a:0]": expected, "[a:1]": expected, "[b:2]": expected}


def test_log_files(tmp_path: Path) -> None:
    source = "import sys\nprint('to the file')\nprint('to both', file=sys.stderr)\nprint('noise', file=sys.stderr)\n"
    logs = ["--log-dir", tmp_path / "logs", "--redirects=1", "--tee=2", "--duplicate-stderr-filters=both"]
    done = atoll("run", *logs, "--island=a:1", script(tmp_path, source))
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.splitlines()[1:] == ["[a:0] to both", "[a:0] noise"]
    contents = {path.name: path.read_text() for path in (tmp_path / "logs").rglob("*.log")}
    assert contents == {
        "stdout.log": "to the file\n", "stderr.log": "to both\nnoise\n", "filtered_stderr.log": "[a:0] to both\n",
    }  # fmt: skip


def test_logs_without_a_folder_are_reported(tmp_path: Path) -> None:
    done = atoll("run", "--tee=1", "--island=a:1", script(tmp_path, "print('x')"), TMPDIR=str(tmp_path))
    assert done.stdout == "[a:0] x\n"
    (log,) = tmp_path.glob("atoll-logs-*/**/stdout.log")
    assert f"atoll run: logs are in {log.parents[3]}\n" in done.stderr
    assert log.read_text() == "x\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_for_terminals(tmp_path: Path, no_color: str) -> None:
    here, there = pty.openpty()
    (tmp_path / "out").symlink_to(os.ttyname(there))
    source = module_source("atoll.cli", "run", "--island=a:1", "--island=b:1", script(tmp_path, "print('hello')"))
    program = Program(source, {**os.environ, "NO_COLOR": no_color}, tmp_path)
    program.process.join(TIMEOUT_S)
    assert program.process.exitcode == 0, program.err.read_text()
    os.close(there)
    lines = sorted(os.read(here, 65536).decode().splitlines())
    os.close(here)
    coloured = ["\x1b[33m[b:1]\x1b[0m hello", "\x1b[36m[a:0]\x1b[0m hello"]
    assert lines == (["[a:0] hello", "[b:1] hello"] if no_color else coloured)
