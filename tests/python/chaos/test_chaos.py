# SPDX-License-Identifier: Apache-2.0
"""Random jobs with random faults: no rank hangs, no result is wrong, and exceptions come in time and name the right
rank.

CHAOS_SEED and CHAOS_TRIALS choose those of the long run."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

import chaos_report
from chaos_ranks import join
from chaos_run import blamed, names_link, run_trial
from chaos_trial import (
    DEATH_S,
    FAULTS,
    LATE_S,
    MAKING_S,
    OPERATIONS,
    PHASES,
    SILENCE_S,
    Trial,
    draw,
    is_heard_of,
    limit_s,
)
from fault_jobs import Job, Me

FIRST = 7 * 42  # the trial of the first fault
MANY = 300
ONCE_BAD = {  # by seed: the description of the trial that was bad
    # A call that waits inside its island held up what had to cross the bridge before it.
    20261290: "kill of rank 3 destroying, islands aaaaBB, hosts aaaabb",
    # Results of a device were used after the exception of another call of their group.
    20261188: "half_open (one way, with rank 3) of rank 0 after call 5, islands AbCAb, hosts abcab, transport tcp",
    # The call had not started: its buffers were still being made.
    20261145: "cut (reset, with rank 3) of rank 2 inside call 4, islands aaBc, hosts aabc",
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
def test_the_ranks_that_an_exception_blames(text: str, ranks: set[int]) -> None:
    assert blamed(text) == ranks


@pytest.mark.parametrize(
    ("text", "rank", "named"),
    [
        ("barrier #1 on rank 0: rank 1 has gone: reset", 0, True),
        ("barrier #1 on rank 0: rank 2 has gone: reset", 0, False),
        ("barrier #1 on rank 1: rank 0 reported: rank 1 has been silent for 2.0 s", 1, True),
        ("barrier #1 on rank 1: rank 2 reported: rank 1 has been silent for 2.0 s", 1, False),
        ("barrier #1 on rank 2: rank 0 reported: rank 1 has been silent for 2.0 s", 2, True),
    ],
)
def test_which_link_an_exception_names(text: str, rank: int, named: bool) -> None:
    assert names_link(text, rank, {0, 1}) == named


def make_groups(me: Me, trial: Trial) -> None:
    join(me, trial, dist.TCPStore("127.0.0.1", me.port, is_master=False))
    me.tell("made")
    me.listen()


def test_when_a_rank_is_known(tmp_path: Path) -> None:
    """Every rank is known once the groups are made, and no rank before the last of its entries is in the store."""
    trial = replace(draw(FIRST), layout="ABA", groups=((0, 1, 2), (0, 1, 2), (0, 2)), inner=False)
    with Job(tmp_path, make_groups, trial.layout, (trial,)) as job:
        job.wait_for("made")
        keys = job.store.list_keys()
    for victim in range(3):
        each = replace(trial, victim=victim)
        assert is_heard_of(each, keys)
        assert not is_heard_of(replace(each, layout="ABA", inner=True), keys) or victim == 1
        for number in (number for number, ranks in enumerate(trial.groups) if victim in ranks):
            assert not is_heard_of(each, [key for key in keys if f"/{number}/" not in key.rpartition("atoll/")[2][3:]])


def test_limits() -> None:
    making = replace(draw(FIRST), fault="kill", phase="making")
    assert limit_s(making, is_heard=True) == DEATH_S
    assert limit_s(making, is_heard=False) == MAKING_S + LATE_S
    assert limit_s(replace(making, fault="stop"), is_heard=True) == SILENCE_S
    assert limit_s(replace(making, phase="inside"), is_heard=True) == DEATH_S


def test_links_inside_islands_are_cut_too() -> None:
    trials = [trial for trial in map(draw, range(1400)) if trial.fault in ("cut", "half_open")]
    inside = [trial for trial in trials if trial.layout[trial.victim] == trial.layout[trial.peer]]
    assert len(trials) / 10 < len(inside) < len(trials) / 2
    assert {trial.transport for trial in inside} == {"tcp", "auto"}
    assert {trial.transport for trial in trials if trial not in inside} == {""}
    assert {trial.transport for trial in inside if trial.fault == "half_open"} == {"tcp"}


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
