# SPDX-License-Identifier: Apache-2.0
"""Trainings that lose ranks and go on in the same processes: the same losses, every sample once, the right end."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from forking import run_module
from recovering_training import BATCH, SAMPLES, alone, make, order
from training import check_close

PROGRAM = Path(__file__).with_name("recovering_training.py")
LIMITS = {"sgd": 1e-12, "adam": 1e-10}
STEPS = -(-SAMPLES // BATCH)  # of an epoch


class Outcome:
    """What a finished job has printed, and what its ranks have noted."""

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
    folder: Path, ranks: list[str], faults: list[dict[str, Any]], *options: str, limit_s: float = 60, **environment: str
) -> Outcome:  # fmt: skip
    """A job with these `--island`s."""
    environment |= {"TEST_FOLDER": str(folder), "TEST_FAULTS": json.dumps(faults)}
    words = ["run", "--on-failure=shrink", *(f"--island={text}" for text in ranks), *options, PROGRAM]
    return Outcome(run_module("atoll.cli", *words, timeout=limit_s, **environment), folder)


def check_training(outcome: Outcome, ranks: list[int], epochs: int = 2, kind: str = "sgd") -> None:
    """The steps that count are those of one process, each of its samples was in one of them on one rank, and `ranks`
    hold the model at the end."""
    assert outcome.status == 0, outcome.err
    losses, net = alone(kind, epochs)
    for number, (loss, wanted) in enumerate(zip(losses, order(epochs), strict=True)):
        accepted = outcome.of("done", step=number)
        assert accepted, f"nobody did step {number}\n{outcome.err}"
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


def test_ranks_die_in_each_phase_of_a_step(tmp_path: Path) -> None:
    """One after another, until a single one is left: in the forward pass, in the all_reduce, before the optimizer's
    step, and in it when all others have done theirs."""
    faults = [
        {"rank": 4, "step": 1, "phase": "forward"},
        {"rank": 0, "step": 3, "phase": "backward"},
        {"rank": 2, "step": 5, "phase": "reduced"},
        {"rank": 1, "step": 8, "phase": "optimizer"},
    ]
    outcome = run(tmp_path, ["a:2", "b:3"], faults, TEST_OPTIMIZER="adam")
    check_training(outcome, [3], kind="adam")
    assert "atoll run: rank 4 is lost: island b, pid " in outcome.err
    assert "ended by SIGKILL" in outcome.err
    assert "atoll run: group 2: ranks 0, 1, 2, 3 go on from step 1\n" in outcome.err
    assert "atoll run: group 5: rank 3 goes on from step 9\n" in outcome.err
    assert "failed first" not in outcome.err


def test_ranks_that_are_behind_get_the_state_of_one_ahead(tmp_path: Path) -> None:
    """Rank 0's all_reduce fails where that of others has succeeded; later rank 1 is left in the middle of the
    optimizer's step. Nobody repeats what counts already."""
    faults = [
        {"rank": 0, "step": 2, "phase": "reduced", "action": "lose"},
        {"rank": 3, "step": 2, "phase": "reduced"},
        {"rank": 1, "step": 6, "phase": "optimizer", "action": "lose"},
    ]
    outcome = run(tmp_path, ["a:2", "b:2"], faults)
    check_training(outcome, [0, 1, 2])
    assert not outcome.of("done", rank=0, step=2)
    assert not outcome.of("done", rank=1, step=6)


def test_a_rank_comes_back(tmp_path: Path) -> None:
    """Stopped, not dead: the others name it, so it is killed and started again. It gets everything from them."""
    faults = [
        {"rank": 1, "step": 2, "phase": "forward", "action": "stop"},
        {"rank": 0, "step": 7, "phase": "between", "action": "wait"},
    ]
    outcome = run(tmp_path, ["a:1", "b:2"], faults, "--max-restarts=1", ATOLL_HEARTBEAT="2", TEST_OPTIMIZER="adam")
    check_training(outcome, [0, 1, 2], kind="adam")
    assert "is killed: it is stopped, and others wait for it" in outcome.err
    assert "atoll run: group 2: ranks 0, 2 go on from step 2\n" in outcome.err
    assert "atoll run: group 3: ranks 0, 1, 2 go on from step " in outcome.err
    assert outcome.of("done", rank=1, life=1)


@pytest.mark.verify
def test_ranks_die_while_others_regroup(tmp_path: Path) -> None:
    faults = [
        {"rank": 2, "step": 2, "phase": "reduced"},
        {"rank": 1, "phase": "meeting 2"},
        {"rank": 3, "phase": "wrap", "wrap": 2},
    ]
    outcome = run(tmp_path, ["a:2", "b:2"], faults, TEST_MEETING="3")
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
    """Over 200 steps, each time started again and taken in before the next is killed."""
    chance = random.Random(20)
    lives = [0, 0, 0]
    faults: list[dict[str, Any]] = []
    for step in range(20, 200, 20):
        victim = chance.randrange(3)
        phase = chance.choice(["forward", "backward", "reduced", "optimizer"])
        faults.append({"rank": victim, "life": lives[victim], "step": step, "phase": phase})
        lives[victim] += 1
        other = (victim + 1) % 3
        faults.append({"rank": other, "life": lives[other], "step": step + 8, "phase": "between", "action": "wait"})
    epochs = -(-200 // STEPS)
    outcome = run(tmp_path, ["a:1", "b:2"], faults, "--max-restarts=9", limit_s=380, TEST_EPOCHS=str(epochs))
    check_training(outcome, [0, 1, 2], epochs)
    assert len(outcome.of("suffers", action="kill")) == 9
