# SPDX-License-Identifier: Apache-2.0
"""The examples run as users run them, and the demo can fail."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launching import atoll

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def torchrun(ranks: int, *arguments: str, must_end_well: bool = True) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0 or not must_end_well, done.stdout + done.stderr
    return done.stdout


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.verify
def test_all_reduce() -> None:
    assert torchrun(3, str(EXAMPLES / "all_reduce.py")).count("the sum is 6") == 3


@pytest.mark.verify
@pytest.mark.parametrize("backend", ["atoll", pytest.param("gloo", marks=pytest.mark.verify)])
def test_train_digits(backend: str) -> None:
    # About one process in thirty aborts at exit after using torch 2.13's Gloo; the results have been printed by then.
    command = [str(EXAMPLES / "train_digits.py"), "--backend", backend, "--epochs", "4"]
    output = torchrun(2, *command, must_end_well=backend == "atoll")
    assert output.count("loss") == 4
    accuracy = re.search(r"accuracy on the held-out fifth: ([0-9.]+)%", output)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 80


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", ["accelerate", "trainer", "lightning", "fabric"])
def test_digits_on_uneven_batches(library: str) -> None:
    islands = ["--island", "a:1,device=cpu", "--island", "b:1,device=cpu"]
    done = atoll("run", *islands, EXAMPLES / f"digits_{library}.py", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"accuracy on the held-out fifth: ([0-9.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 80


@pytest.mark.verify
def test_elastic(tmp_path: Path) -> None:
    command = ["--island=a:1,device=cpu", "--island=b:1,device=cpu", EXAMPLES / "elastic.py", "--folder", tmp_path]
    for epochs, begin in ((1, 0), (4, 23)):
        done = atoll("run", *command, "--epochs", epochs, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"2 ranks go on from step {begin}: batches" in done.stdout
    accuracy = re.search(r"92 steps: accuracy on the held-out fifth: ([0-9.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 80


@pytest.mark.verify
def test_shrink() -> None:
    options = ["--on-failure=shrink", "--island=a:1,device=cpu", "--island=b:1,device=cpu"]
    done = atoll("run", *options, EXAMPLES / "shrink.py", "--kill", "--epochs", "10", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "atoll run: group 2: rank 0 goes on from step 10" in done.stderr  # 100 or 101
    assert "on ranks [0]" in done.stdout
    recognised = re.search(r"([0-9.]+)% of the digits are recognised", done.stdout)
    assert recognised is not None
    assert float(recognised.group(1)) > 80


@pytest.mark.verify
def test_demo_passes() -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^step 180 of 180: loss", done.stdout, re.MULTILINE)
    assert len(set(re.findall(r"rank \d: ([0-9a-f]{64})", done.stdout))) == 1
    assert len(re.findall(r"│ +cpu │ +cpu │ +atoll │", done.stdout)) == 2
    assert len(re.findall(r"│ +sim │ +sim:\d │ +simccl │", done.stdout)) == 2
    assert re.search(r"│ +equal │ +32, 32, 32, 32 │ +[0-9.]+ ms │", done.stdout)
    shares = re.search(r"│ +balanced │ +(\d+), (\d+), (\d+), (\d+) │ +[0-9.]+ ms │", done.stdout)
    assert shares is not None, done.stdout
    assert sum(map(int, shares.groups())) == 128
    assert re.search(r"│ +the bound │ +│ +[0-9.]+ ms │", done.stdout)
    assert re.search(r"^Atoll: demo passed: 9[789]\.\d% accuracy, .* [0-9.]+x as fast as", done.stdout, re.MULTILINE)


@pytest.mark.verify
def test_split_demo_passes() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo_split.py")], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Atoll: split demo passed: the model's own answers, [0-9.]+x", done.stdout, re.MULTILINE)
    assert "The server was killed: the next answer came from the robot" in done.stdout


@pytest.mark.verify
def test_demo_fails_without_accuracy() -> None:
    done = demo("--epochs", "1")
    assert done.returncode == 1
    assert re.search(r"^Atoll: DEMO FAILED: the accuracy is .*, below 97%$", done.stdout, re.MULTILINE)


def ranks_of_demo() -> list[dict[str, Any]]:
    ranks = [{"rank": rank, "island": "cpu", "sha256": "a", "accuracy": 0.98, "bridge_s": 1.0} for rank in range(4)]
    ranks[2]["island"] = "sim"
    return ranks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "b"}, "different parameters"),
        ({"accuracy": 0.9}, "the accuracy is 90.0%"),
        ({"bridge_s": 0.0}, "nothing crossed the bridge"),
    ],
)
def test_demo_judges(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo as demo_module

    ranks = ranks_of_demo()
    assert demo_module.judge(demo_module.Outcome(ranks, []), "atoll", 0.97) == []
    ranks[2].update(change)
    (failure,) = demo_module.judge(demo_module.Outcome(ranks, []), "atoll", 0.97)
    assert message in failure
    assert demo_module.judge(demo_module.Outcome(ranks[:2], []), "atoll", 0.97) == ["2 of 4 ranks finished"]


def test_demo_reports_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the end of a demo whose ranks have trained too little; `make verify` runs such a demo completely."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo as demo_module

    ranks = [rank | {"accuracy": 0.9} for rank in ranks_of_demo()]
    monkeypatch.setattr(demo_module, "run", lambda backend, epochs: demo_module.Outcome(ranks, []))
    monkeypatch.setattr(demo_module, "show", lambda outcome: None)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--epochs", "1"])
    assert demo_module.main() == 1
    assert re.search(r"^Atoll: DEMO FAILED: the accuracy is 90\.0%, below 97%$", capsys.readouterr().out, re.MULTILINE)


def test_demo_does_not_wait_for_ranks_that_wait_for_a_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo as demo_module

    monkeypatch.setattr(demo_module, "GRACE_SECONDS", 0.1)

    def start(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    processes = [start("import sys; sys.stdin.read()"), start("raise SystemExit(7)")]
    try:
        outcome = demo_module.follow(processes)
        assert outcome.failures == ["rank 1 ended with status 7", "ranks [0] had to be stopped after that"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.verify
def test_demo_names_a_rank_that_dies() -> None:
    environment = {**os.environ, "ATOLL_HEARTBEAT": "not a number"}
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 1
    assert re.search(r"^Atoll: DEMO FAILED: rank \d ended with status 1", done.stdout, re.MULTILINE)
