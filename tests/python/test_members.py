# SPDX-License-Identifier: Apache-2.0
"""The members of a job that shrinks and grows: the rule by itself, with made-up processes and times."""

import random

import pytest

from atoll.launch.members import (
    GRACE_S,
    MAX_FRUITLESS_GROUPS,
    START_S,
    Decision,
    End,
    Grow,
    Kill,
    Members,
    Publish,
    Start,
    State,
)
from atoll.recovering.notices import AWAY, BACK, FRESH, READY, TORN, Notice, Roster, Seat

TIMEOUT_S = 600.0


class Job:
    """The rule, with its decisions since they were last read."""

    def __init__(self, ranks: int = 3, least: int = 1, restarts: int = 0) -> None:
        self.stopped: set[str] = set()
        self.rule = Members(["x"] * ranks, least, restarts, lambda name: name in self.stopped)
        self.now = 0.0
        self.first = [f"{rank}.0" for rank in range(ranks)]
        assert self.decisions() == [Start(rank, f"{rank}.0") for rank in range(ranks)]

    def decisions(self) -> list[Decision]:
        found: list[Decision] = []
        while some := self.rule.decide(self.now):
            found += some
        return found

    def ready(self, name: str, step: int = FRESH, suspects: tuple[str, ...] = (), reason: str = "") -> list[Decision]:
        number = self.rule.members[name].number
        self.rule.notice(Notice(name, READY, number, step, suspects, reason, TIMEOUT_S), self.now)
        return self.decisions()

    def away(self, name: str) -> list[Decision]:
        self.rule.notice(Notice(name, AWAY, self.rule.members[name].number), self.now)
        return self.decisions()

    def back(self, name: str) -> list[Decision]:
        self.rule.notice(Notice(name, BACK, self.rule.members[name].number), self.now)
        return self.decisions()

    def ends(self, name: str, code: int = -9) -> list[Decision]:
        self.rule.ended(name, code)
        return self.decisions()

    def begin(self) -> "Job":
        """All ranks are in the first group."""
        for name in self.first[:-1]:
            assert self.ready(name) == []
        assert group(self.ready(self.first[-1])) == (1, self.first, 0)
        return self


def group(decisions: list[Decision]) -> tuple[int, list[str], int]:
    (found,) = decisions
    assert isinstance(found, Publish)
    assert [seat.rank for seat in found.roster.seats] == list(range(len(found.roster.seats)))
    return found.roster.number, [seat.member for seat in found.roster.seats], found.step


def test_rosters_and_notices_travel() -> None:
    notice = Notice("1.0", READY, 3, 57, ("0.0", "2.1"), 'all_reduce #7: "rank 0" died', 12.5)
    assert Notice.parse(notice.text()) == notice
    roster = Roster(4, (Seat("0.0", 0, 0, "fast"), Seat("2.1", 1, 2, "slow")), True)
    assert Roster.parse(roster.text().encode()) == roster
    assert roster.seat("2.1").rank == 1


def test_survivors_go_on_when_all_of_them_wait() -> None:
    job = Job().begin()
    assert job.ends("1.0") == []
    assert job.ready("2.0", 7) == []
    assert group(job.ready("0.0", 8)) == (2, ["0.0", "2.0"], 8)


def test_a_rank_that_dies_while_others_wait_is_not_waited_for() -> None:
    job = Job().begin()
    job.ends("1.0")
    assert job.ready("2.0", 7) == []
    assert group(job.ends("0.0")) == (2, ["2.0"], 7)


def test_a_rank_that_waits_and_dies_is_on_no_roster() -> None:
    job = Job(4).begin()
    job.ends("1.0")
    job.ready("2.0", 7)
    assert job.ends("2.0") == []
    job.ready("0.0", 7)
    assert group(job.ready("3.0", 7)) == (2, ["0.0", "3.0"], 7)


def test_a_rank_that_does_not_start_is_left_out_of_the_first_group() -> None:
    job = Job()
    job.ready("0.0")
    job.ready("2.0")
    assert group(job.ends("1.0", 127)) == (1, ["0.0", "2.0"], 0)


def test_a_stopped_rank_that_others_name_is_killed() -> None:
    job = Job().begin()
    job.stopped = {"1.0", "2.0"}
    (kill,) = job.ready("0.0", 4, suspects=("1.0",))
    assert isinstance(kill, Kill)
    assert kill.member == "1.0"
    assert job.decisions() == []
    job.stopped = set()
    job.ends("1.0")
    assert group(job.ready("2.0", 4)) == (2, ["0.0", "2.0"], 4)


def test_a_named_rank_has_time_to_find_out_by_itself() -> None:
    job = Job().begin()
    assert job.ready("0.0", 4, suspects=("1.0",)) == []
    job.now = GRACE_S - 1
    assert job.ready("2.0", 4, suspects=("1.0",)) == []
    job.now = GRACE_S + 1
    (kill,) = job.decisions()
    assert isinstance(kill, Kill)
    assert kill.member == "1.0"


def test_a_named_rank_that_comes_is_kept() -> None:
    job = Job(2).begin()
    job.ready("0.0", 4, suspects=("1.0",))
    job.now = GRACE_S - 1
    assert group(job.ready("1.0", 4, suspects=("0.0",))) == (2, ["0.0", "1.0"], 4)
    job.now = 10 * GRACE_S
    assert job.decisions() == []


def test_a_rank_that_nobody_names_has_the_timeout() -> None:
    job = Job().begin()
    job.ready("0.0", 4)
    job.now = TIMEOUT_S
    assert job.decisions() == []
    job.now = TIMEOUT_S + 1
    assert [kill.member for kill in job.decisions() if isinstance(kill, Kill)] == ["1.0", "2.0"]


def test_starting_takes_longer_than_operations() -> None:
    job = Job(2)
    job.rule.notice(Notice("0.0", READY, timeout_s=1.0), job.now)
    job.now = START_S
    assert job.decisions() == []
    job.now = START_S + 1
    (kill,) = job.decisions()
    assert isinstance(kill, Kill)
    assert kill.member == "1.0"


def test_a_lost_rank_is_started_again_and_taken_in_at_a_boundary() -> None:
    job = Job(restarts=1).begin()
    assert job.ends("1.0") == [Start(1, "1.1")]
    job.ready("0.0", 7)
    assert group(job.ready("2.0", 7)) == (2, ["0.0", "2.0"], 7)  # it is not waited for
    assert job.ready("1.1") == [Grow(2)]
    assert job.ready("0.0", 9) == []
    assert group(job.ready("2.0", 9)) == (3, ["0.0", "1.1", "2.0"], 9)
    assert job.ends("1.1") == []  # no restarts are left
    job.ready("0.0", 9)
    assert group(job.ready("2.0", 9)) == (4, ["0.0", "2.0"], 9)


def test_a_rank_that_comes_while_others_regroup_joins_at_once() -> None:
    job = Job(restarts=2).begin()
    assert job.ends("1.0") == [Start(1, "1.1")]
    job.ready("0.0", 7)
    assert job.ready("1.1") == []
    assert group(job.ready("2.0", 7)) == (2, ["0.0", "1.1", "2.0"], 7)


def test_a_newcomer_alone_has_nothing_to_go_on_with() -> None:
    job = Job(2, restarts=2).begin()
    job.ends("1.0")
    job.ready("1.1")
    (end,) = job.ends("0.0")
    assert isinstance(end, End)
    assert "no rank is left that holds the state" in end.problem


def test_ranks_left_in_the_middle_of_a_step_have_nothing_to_go_on_with() -> None:
    job = Job(3).begin()
    job.ends("1.0")
    job.ready("0.0", TORN)
    (end,) = job.ready("2.0", TORN)
    assert isinstance(end, End)
    assert end.problem
    job = Job(3).begin()
    job.ends("1.0")
    job.ready("0.0", TORN)
    assert group(job.ready("2.0", 6)) == (2, ["0.0", "2.0"], 6)


def test_too_few_ranks_end_the_job() -> None:
    job = Job(3, least=2).begin()
    assert job.ends("1.0") == []
    assert job.ends("2.0") == [End("1 of at least 2 ranks are left")]
    assert job.rule.is_over
    assert job.decisions() == []


def test_too_few_wait_for_one_that_starts_again() -> None:
    job = Job(2, least=2, restarts=1).begin()
    assert job.ends("1.0") == [Start(1, "1.1")]
    assert job.ready("0.0", 3) == []
    assert group(job.ready("1.1")) == (2, ["0.0", "1.1"], 3)


def test_the_end_of_a_training() -> None:
    job = Job(2).begin()
    job.away("0.0")
    job.away("1.0")
    assert job.ends("0.0", 0) == []
    assert job.ends("1.0", 0) == [End()]


def test_a_rank_lost_before_the_last_step_does_not_spoil_the_end() -> None:
    job = Job(3).begin()
    job.ends("1.0")
    job.ready("0.0", 3)
    job.ready("2.0", 3)
    assert job.ends("0.0", 0) == []
    assert job.ends("2.0", 0) == [End()]


def test_a_finished_rank_is_not_waited_for() -> None:
    job = Job(3).begin()
    job.away("0.0")
    job.ends("1.0")
    assert group(job.ready("2.0", 9)) == (2, ["2.0"], 9)
    job.away("2.0")
    assert job.ends("0.0", 0) == []
    assert job.ends("2.0", 0) == [End()]


def test_a_finished_rank_counts_among_the_ranks_that_a_job_needs() -> None:
    job = Job(2, least=2).begin()
    job.away("0.0")
    job.ends("0.0", 0)
    assert group(job.ready("1.0", 9)) == (2, ["1.0"], 9)


def test_a_failure_after_the_loop_is_one_of_the_job() -> None:
    job = Job(2).begin()
    job.away("0.0")
    job.away("1.0")
    assert job.ends("0.0", 0) == []
    (end,) = job.ends("1.0", 1)
    assert isinstance(end, End)
    assert end.problem


def test_members_come_back_to_their_group() -> None:
    job = Job(2).begin()
    job.away("0.0")
    job.back("0.0")
    assert job.rule.members["0.0"].state is State.TRAINING


def test_a_member_that_was_away_too_long_comes_as_a_newcomer() -> None:
    job = Job(3).begin()
    job.away("0.0")
    job.ends("1.0")
    assert group(job.ready("2.0", 9)) == (2, ["2.0"], 9)
    job.back("0.0")
    assert job.rule.members["0.0"].state is State.AWAY
    assert job.ready("0.0", 8) == [Grow(2)]
    assert group(job.ready("2.0", 11)) == (3, ["0.0", "2.0"], 11)


def test_newcomers_of_a_training_that_is_over_are_not_waited_for() -> None:
    job = Job(2, restarts=1).begin()
    job.ends("1.0")
    job.ready("0.0", 9)
    job.away("0.0")
    assert job.ready("1.1") == []
    assert job.ends("0.0", 0) == [End()]


def test_programs_that_ask_for_no_group() -> None:
    """Their ranks are started once, and every failure counts."""
    job = Job(2, restarts=3)
    assert job.ends("0.0", 0) == []
    assert job.ends("1.0", 0) == [End()]
    job = Job(2, restarts=3)
    assert job.ends("0.0", 1) == []
    (end,) = job.ends("1.0", 0)
    assert isinstance(end, End)
    assert end.problem


def test_groups_that_fail_again_and_again() -> None:
    job = Job(2).begin()
    for _ in range(MAX_FRUITLESS_GROUPS):
        assert not job.rule.is_over
        job.ready("0.0", 3)
        decisions = job.ready("1.0", 3, reason="the link is cut")
    assert not job.rule.is_over
    job.ready("0.0", 3)
    decisions = job.ready("1.0", 3, reason="the link is cut")
    end = decisions[-1]
    assert isinstance(end, End)
    assert end.problem.endswith("the link is cut")


@pytest.mark.parametrize("seed", range(20))
def test_every_job_comes_to_an_end(seed: int) -> None:
    """Ranks die, lose their group and come back at random. Only ranks that wait for a roster are on it, and every
    waiting rank gets an answer, or the job ends."""
    chance = random.Random(seed)
    job = Job(4, least=chance.randint(1, 2), restarts=3)
    steps = dict.fromkeys(job.first, FRESH)
    waiting: set[str] = set()
    live = set(job.first)
    for _ in range(400):
        job.now += chance.random() * 40
        name = chance.choice(sorted(live))
        if chance.random() < 0.05:
            live.discard(name)
            waiting.discard(name)
            decisions = job.ends(name)
        elif name not in waiting:
            waiting.add(name)
            decisions = job.ready(name, steps[name])
        else:
            decisions = job.decisions()
        for decision in decisions:
            if isinstance(decision, Start):
                live.add(decision.member)
                steps[decision.member] = FRESH
            elif isinstance(decision, Publish):
                members = {seat.member for seat in decision.roster.seats}
                assert members == waiting, "the roster is of those that wait"
                waiting -= members
                steps.update(dict.fromkeys(members, decision.step + chance.randint(0, 3)))
            elif isinstance(decision, End):
                return
    for _ in range(10):  # those that neither wait nor train are gone, too
        for name in sorted(live - waiting):
            live.discard(name)
            for decision in job.ends(name):
                if isinstance(decision, Start):
                    live.add(decision.member)
                elif isinstance(decision, Publish):
                    waiting -= {seat.member for seat in decision.roster.seats}
                elif isinstance(decision, End):
                    return
    assert not waiting, "some wait forever"
