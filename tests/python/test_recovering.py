# SPDX-License-Identifier: Apache-2.0
"""Trainings that lose ranks and go on in the same processes: the same losses, every sample once, the right end."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forking import run_module
from recovering_training import BATCH, SAMPLES, alone, make, order
from redis_server import store_options
from support import later
from training import check_close

PROGRAM = Path(__file__).with_name("recovering_training.py")
LIMITS = {"sgd": 1e-12, "adam": 1e-10}
STEPS = -(-SAMPLES // BATCH)  # of an epoch


@pytest.fixture(params=["launcher", later("redis")])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The options for a job whose ranks and supervisor communicate through that store."""
    with store_options(request.param, tmp_path, "recovers") as options:
        yield options


class Outcome:
    """The output of a finished job, and the records of its ranks."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.folder = folder
        self.notes: list[dict[str, Any]] = []
        for path in sorted(folder.glob("rank*.jsonl")):
            self.notes += [json.loads(line) for line in path.read_text().splitlines()]

    def of(self, what: str, **values: Any) -> list[dict[str, Any]]:
        wanted = {"what": what, **values}
        return [note for note in self.notes if all(note.get(name) == value for name, value in wanted.items())]


def run(
    folder: Path,
    ranks: list[str],
    faults: list[dict[str, Any]],
    *options: str,
    limit_s: float = 100,
    **environment: str,
) -> Outcome:
    """Runs a job with these `--island` options."""
    environment |= {"TEST_FOLDER": str(folder), "TEST_FAULTS": json.dumps(faults)}
    words = ["run", "--on-failure=shrink", *(f"--island={text}" for text in ranks), *options, PROGRAM]
    return Outcome(run_module("atoll.cli", *words, timeout=limit_s, **environment), folder)


def check_training(outcome: Outcome, ranks: list[int], epochs: int = 2, kind: str = "sgd") -> None:
    """Checks that the steps that count are those of one process, that each sample was used in exactly one of them on
    one rank, and that `ranks` hold the model at the end."""
    assert outcome.status == 0, outcome.err
    losses, net = alone(kind, epochs)
    for number, (loss, wanted) in enumerate(zip(losses, order(epochs), strict=True)):
        accepted = outcome.of("done", step=number)
        assert accepted, f"no rank did step {number}\n{outcome.err}"
        group = accepted[0]["group"]
        for note in accepted:
            assert note["group"] == group, f"step {number} counts in two groups"
            assert abs(note["loss"] - loss) <= LIMITS[kind] * abs(loss), f"step {number}: {note['loss']}, not {loss}"
        computed = outcome.of("computed", step=number, group=group)
        assert sorted(index for note in computed for index in note["indices"]) == sorted(wanted), f"step {number}"
    for rank in ranks:
        assert outcome.of("end", rank=rank), f"rank {rank} did not end its loop\n{outcome.err}"
        own, _ = make(kind)
        own.load_state_dict(torch.load(outcome.folder / f"net{rank}.pt", weights_only=True))
        check_close(own, net, LIMITS[kind])


# Proves E-7.
def test_ranks_are_lost_in_each_phase_of_a_step(tmp_path: Path) -> None:
    """Ranks die one after another until a single one is left: in the forward pass, in the all_reduce, and in the
    optimizer's step after all others have done theirs. In between, rank 0's all_reduce fails although that of others
    has succeeded, and it is left in the middle of a step that no other rank has done. No rank repeats a step that
    counts already."""
    faults = [
        {"rank": 3, "step": 1, "phase": "forward"},
        {"rank": 0, "step": 2, "phase": "reduced", "action": "lose", "after": [1, 2]},
        {"rank": 0, "step": 4, "phase": "optimizer", "action": "tear"},
        {"rank": 1, "step": 4, "phase": "reduced", "action": "lose", "after": [0]},
        {"rank": 2, "step": 4, "phase": "reduced", "action": "lose", "after": [0]},
        {"rank": 0, "step": 6, "phase": "backward"},
        {"rank": 1, "step": 8, "phase": "optimizer", "after": [2]},
    ]
    outcome = run(tmp_path, ["a:2", "b:2"], faults, TEST_OPTIMIZER="adam")
    check_training(outcome, [2], kind="adam")
    assert not outcome.of("done", rank=0, step=2)
    assert "atoll run: rank 3 is lost: island b, pid " in outcome.err
    assert "ended by SIGKILL; the system may have run out of memory: check `dmesg`" in outcome.err
    groups = [("ranks 0, 1, 2 go", 1), ("ranks 0, 1, 2 go", 3), ("ranks 0, 1, 2 go", 4), ("ranks 1, 2 go", 6),
              ("rank 2 goes", 9)]  # fmt: skip
    for number, (ranks, step) in enumerate(groups, start=2):
        assert f"atoll run: group {number}: {ranks} on from step {step}\n" in outcome.err, outcome.err
    assert "failed first" not in outcome.err


def test_a_rank_comes_back(tmp_path: Path, store: list[str]) -> None:
    """A stopped rank is named by the others, killed and started again. It gets its state from them."""
    faults = [
        {"rank": 1, "step": 2, "phase": "forward", "action": "stop"},
        {"rank": 0, "step": 7, "phase": "between", "action": "wait"},
    ]
    words = [*store, "--max-restarts=1"]
    outcome = run(tmp_path, ["a:1", "b:1"], faults, *words, ATOLL_HEARTBEAT="5", TEST_OPTIMIZER="adam")
    check_training(outcome, [0, 1], kind="adam")
    assert "is killed: it is stopped, and other ranks wait for it" in outcome.err
    assert "ended by SIGKILL\n" in outcome.err
    assert "atoll run: group 2: rank 0 goes on from step 2\n" in outcome.err
    assert "atoll run: group 3: ranks 0, 1 go on from step " in outcome.err
    assert outcome.of("done", rank=1, life=1)
    if store:
        listed = [(note["group"], note["rows"]) for note in outcome.of("listed")]
        assert listed == [(1, [["0", "2/2"], ["1", "2/2"]]), (2, [["0", "1/1"]]), (3, [["0", "2/2"], ["1", "2/2"]])]


def test_a_new_plan_for_those_that_are_left(tmp_path: Path) -> None:
    """Each group measures the cost of a sample on its ranks: the slow one gets fewer samples, with two others and
    with one."""
    faults = [{"rank": 0, "step": 2, "phase": "forward"}]
    outcome = run(tmp_path, ["a:2", "b:1"], faults, TEST_PACES="[0.001, 0.001, 0.005]")
    check_training(outcome, [1, 2])
    first, second = (outcome.of("plan", rank=2, wrap=wrap)[0]["batches"] for wrap in (1, 2))
    assert (len(first), sum(first), len(second), sum(second)) == (3, BATCH, 2, BATCH)
    assert first[2] < min(first[:2]), first
    assert second[1] < second[0] > max(first), (first, second)


@pytest.mark.verify
def test_one_dies_and_one_is_behind_in_the_same_step(tmp_path: Path) -> None:
    faults = [
        {"rank": 0, "step": 2, "phase": "reduced", "action": "lose", "after": [1, 2]},
        {"rank": 3, "step": 2, "phase": "optimizer", "after": [1, 2]},
    ]
    outcome = run(tmp_path, ["a:2", "b:2"], faults)
    check_training(outcome, [0, 1, 2])
    assert not outcome.of("done", rank=0, step=2)
    assert outcome.of("done", rank=1, step=2)


# Proves E-7.
@pytest.mark.verify
def test_ranks_die_while_others_regroup(tmp_path: Path, store: list[str]) -> None:
    faults = [
        {"rank": 2, "step": 2, "phase": "reduced"},
        {"rank": 1, "phase": "meeting 2"},
        {"rank": 3, "phase": "wrap", "wrap": 2},
    ]
    outcome = run(tmp_path, ["a:2", "b:2"], faults, *store, TEST_MEETING="3")
    check_training(outcome, [0])


@pytest.mark.verify
def test_an_error_of_the_program_ends_its_rank_alone(tmp_path: Path) -> None:
    outcome = run(tmp_path, ["a:3"], [{"rank": 1, "step": 3, "phase": "forward", "action": "raise"}])
    check_training(outcome, [0, 2])
    assert "ValueError: an error of the program's own" in outcome.err
    assert "atoll run: rank 1 is lost: island a, pid " in outcome.err


@pytest.mark.verify
def test_an_error_of_all_ranks_is_the_end(tmp_path: Path) -> None:
    faults = [{"rank": rank, "step": 3, "phase": "forward", "action": "raise"} for rank in range(2)]
    outcome = run(tmp_path, ["a:2"], faults)
    assert outcome.status == 1
    assert "failed first: island a, host " in outcome.err
    assert "ValueError: an error of the program's own" in outcome.err


@pytest.mark.verify
def test_too_few_are_left(tmp_path: Path) -> None:
    outcome = run(tmp_path, ["a:3"], [{"rank": 1, "step": 3, "phase": "forward"}], "--min-ranks=3")
    assert outcome.status == 128 + 9
    assert "atoll run: 2 of at least 3 ranks are left\n" in outcome.err
    assert "atoll run: rank 1 failed first: island a, host " in outcome.err
    assert not outcome.of("end")


@pytest.mark.verify
def test_a_failure_after_the_training_counts(tmp_path: Path) -> None:
    outcome = run(tmp_path, ["a:2"], [{"rank": 1, "phase": "after", "action": "raise"}])
    assert outcome.status == 1
    assert "atoll run: rank 1 failed first: " in outcome.err


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_a_random_rank_is_killed_every_20_steps(tmp_path: Path) -> None:
    """Over 200 steps, each killed rank is started again and has joined before the next is killed."""
    chance = random.Random(20)
    lives = [0, 0, 0]
    faults: list[dict[str, Any]] = []
    for step in range(20, 200, 20):
        victim = chance.randrange(3)
        phase = chance.choice(["forward", "backward", "reduced", "optimizer"])
        after = [rank for rank in range(3) if rank != victim and phase == "optimizer"]
        faults.append({"rank": victim, "life": lives[victim], "step": step, "phase": phase, "after": after})
        lives[victim] += 1
        other = (victim + 1) % 3
        faults.append({"rank": other, "life": lives[other], "step": step + 8, "phase": "between", "action": "wait"})
    epochs = -(-200 // STEPS)
    outcome = run(tmp_path, ["a:1", "b:2"], faults, "--max-restarts=9", limit_s=380, TEST_EPOCHS=str(epochs))
    check_training(outcome, [0, 1, 2], epochs)
    assert len(outcome.of("suffers", action="kill")) == 9
