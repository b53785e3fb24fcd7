# SPDX-License-Identifier: Apache-2.0
"""Random jobs with random faults: nobody hangs, no result is wrong, and exceptions come in time with the right name.

CHAOS_SEED and CHAOS_TRIALS choose those of the long run."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

import chaos_report
from chaos_run import blamed, run_trial
from chaos_trial import FAULTS, OPERATIONS, PHASES, draw

FIRST = 7 * 42  # the trial of the first fault
MANY = 300
ONCE_BAD = {  # by seed, as what it was drawn then
    # A call that waits inside its island held up what had to cross the bridge before it.
    20261290: "kill of rank 3 destroying, islands aaaaBB, hosts aaaabb",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial(tmp_path: Path, fault: str) -> None:
    trial = draw(FIRST + FAULTS.index(fault))
    assert trial.fault == fault
    outcome = run_trial(trial, tmp_path / "trial")
    assert outcome.good, [trial.describe(), *outcome.complaints(), outcome.ends]


@pytest.mark.parametrize("seed", ONCE_BAD)
def test_a_trial_that_was_bad_once(tmp_path: Path, seed: int) -> None:
    trial = draw(seed)
    assert trial.describe() == ONCE_BAD[seed], "the same seed draws another trial: find one that does what this did"
    outcome = run_trial(trial, tmp_path / "trial")
    assert outcome.good, [*outcome.complaints(), outcome.ends]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("recv #3 on rank 0: rank 2 reported: all_reduce #4 (sum) on rank 2: rank 1 has gone: reset", {1}),
        ("rank 4 reported: scatter #0 (int64, root 0) on rank 4: no socket: Too many open files", {4}),
        ("send to rank 3 on rank 0: rank 1 has left the group", {1}),
        ("all_reduce #1 on rank 0 timed out: waiting for ranks 2, 3 and 5", {2, 3, 5}),
        ("rank 1 (rank 6 of the job) did not join the group of 2 ranks in time", {6}),
        ("broadcast #2 (root 1) on rank 0: the store is gone", set()),
    ],
)
def test_whom_an_exception_blames(text: str, ranks: set[int]) -> None:
    assert blamed(text) == ranks


def test_trials_are_the_same_again_and_unlike_each_other() -> None:
    trials = [draw(seed) for seed in range(700)]
    assert trials == [draw(seed) for seed in range(700)]
    assert set(Counter(trial.fault for trial in trials).values()) == {100}
    assert {(trial.fault, trial.phase) for trial in trials} == {
        (fault, phase) for fault, phases in PHASES.items() for phase in phases
    }
    assert len({(trial.layout, trial.hosts) for trial in trials}) > 50
    assert {call.operation for trial in trials for call in trial.calls} == set(OPERATIONS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_trials(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().getrandbits(31))))
    count = int(os.environ.get("CHAOS_TRIALS", str(MANY)))
    with capsys.disabled():
        print(f"\nchaos: {count} trials from seed {seed}", flush=True)
        outcomes = chaos_report.run_all(
            range(seed, seed + count), lambda text: print(text, flush=True), chaos_report.SOAK / "chaos"
        )
        facts = chaos_report.document(outcomes, seed)
        print(chaos_report.table(facts))
    chaos_report.write(facts, chaos_report.PAGES if count >= MANY else None)
    assert chaos_report.failures(facts) == []
