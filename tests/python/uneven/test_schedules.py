# SPDX-License-Identifier: Apache-2.0
"""Each sample comes once over many random schedules of the whole loader, whose ranks are threads here: with
policies, changing plans, parts, breaks, states, and restarts on other ranks with other global batches."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from lives import random_pace, random_plans
from test_following import Paced
from threads import Meeting, Model, Seat, on_threads, seat_loaders

EPOCHS = 2
POLICIES = ("minmax", "equal", "random", "fixed", "kaitian", "kaitian-iterative", "balancenet-eq5", "energy")


class Run:
    """One life of a training: the settings of all its ranks, drawn at random."""

    def __init__(self, chance: random.Random, samples: int, seed: int) -> None:
        self.samples, self.order_seed, self.seed = samples, seed, chance.randrange(10**6)
        self.ranks = chance.randint(1, 5)
        self.least = chance.randint(0, 1)
        self.batch = chance.randint(self.ranks, 30)
        self.policy = chance.choice(POLICIES)
        self.shares = [chance.choice([0.0, 1.0, 2.5]) for _ in range(self.ranks)]
        self.shares[chance.randrange(self.ranks)] = 1.0
        self.replay = random_plans(self.ranks, self.batch, 30, chance) if chance.random() < 0.3 else None
        self.interval = chance.randint(0, 3)
        self.alike = chance.random() < 0.5
        self.steps = chance.randint(1, 25)
        self.breaks = {step for step in range(self.steps) if chance.random() < 0.2}
        self.state_at = chance.randint(0, self.steps)

    def loader(self, seat: Seat) -> atoll.DataLoader:
        own = random.Random(self.seed + seat.rank)
        options = atoll.training.Settings(
            measure=False, update_interval=self.interval, patience=1, least=self.least, replay=self.replay,
            form="normalised", watts=(own.uniform(50, 300), 20.0), watch=atoll.training.Watch(live=False),
        )  # fmt: skip
        made = atoll.DataLoader(
            list(range(self.samples)), self.batch, model=Model(seat.meeting), group=seat, policy=self.policy,
            shares=self.shares if self.policy == "fixed" else None, seed=self.order_seed,
            micro_batch=own.choice([None, 1, 3]), settings=options,
        )  # fmt: skip
        Paced(seat.rank, random_pace(self.seed)).put_into(made)
        return made


Seen = list[tuple[int, int, int]]  # epoch, step, sample


def live(run: Run, seat: Seat, state: Any) -> tuple[Seen, list[Any]]:
    """Returns the samples that one rank took, and its states, one for each step that was done."""
    loader = run.loader(seat)
    if state is not None:
        loader.load_state_dict(state)
    states, seen = [loader.state_dict()], []
    while loader.epoch < EPOCHS and len(states) <= run.steps:
        for batch in loader:
            now = loader.state_dict()
            step = now["steps"] + (0 if loader.step_complete else 1)
            if loader.weight:
                seen += [(now["epoch"], step, number) for number in batch.tolist()]
            if loader.step_complete:
                states.append(now)
                if len(states) > run.steps or len(states) in run.breaks:
                    break
    if loader.epoch == EPOCHS:
        states.append(loader.state_dict())
    return seen, states


def train(chance: random.Random, samples: int, seed: int) -> dict[int, list[int]]:
    """Runs lives until all epochs are done; returns the samples that count of each."""
    found: dict[int, list[int]] = {epoch: [] for epoch in range(EPOCHS)}
    state: Any = None
    while state is None or state["epoch"] < EPOCHS:
        run, begun = Run(chance, samples, seed), state
        of_ranks = on_threads(Meeting(run.ranks, run.alike), lambda seat, run=run, begun=begun: live(run, seat, begun))
        states = of_ranks[0][1]
        assert all(others == states for _, others in of_ranks), "states are the same on all ranks"
        state = json.loads(json.dumps(states[min(run.state_at, len(states) - 1)]))
        if states[-1]["epoch"] == EPOCHS:
            state = states[-1]
        first = begun["steps"] if begun else 0
        for seen, _ in of_ranks:
            for epoch, step, number in seen:
                if first < step <= state["steps"]:
                    found[epoch].append(number)
    return found


@settings(max_examples=60)
@given(st.integers(1, 150), st.integers(0, 10**6))
def test_every_sample_once(samples: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seat_loaders(patch)
        for numbers in train(random.Random(seed), samples, seed).values():
            assert sorted(numbers) == list(range(samples))


SLOW_FAST, FAST_SLOW = (2e-3, 1e-3), (1e-3, 2e-3)


def paced_loader(seat: Seat, *windows: tuple[float, ...]) -> atoll.DataLoader:
    """Returns a loader of two ranks, with their seconds per sample for each step, which is a window."""
    watch = atoll.training.Watch(live=False)
    options = atoll.training.Settings(measure=False, update_interval=1, patience=1, watch=watch)
    made = atoll.DataLoader(list(range(100)), 30, model=Model(seat.meeting), group=seat, settings=options)
    Paced(seat.rank, lambda rank, step: windows[step - 1][rank]).put_into(made)
    return made


def change_after_many_parts(seat: Seat) -> list[int]:
    """Workers have only the first of many parts of step 3: the next two windows end before they get the others."""
    loader = paced_loader(seat, SLOW_FAST, FAST_SLOW, SLOW_FAST)
    for steps in (1, 2, 3):
        loader._steps = steps
        loader.planner.step_ended(steps, 0, 4)
    return [plan.first_step for plan in loader.planner._book.plans]


def tail_of_a_resumed_loader(seat: Seat) -> list[list[int]]:
    """Runs a loader of two ranks, the first of which has already planned the last step."""
    loader = paced_loader(seat, SLOW_FAST)
    loader._steps = 1
    loader.planner.step_ended(1, 0, 1)
    before = loader.planner.cut(1, 10)[0] if seat.rank == 0 else []
    loader.load_state_dict(loader.state_dict())
    return [before, loader.planner.cut(1, 10)[0]]


def test_plans_of_several_windows_wait_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    seat_loaders(monkeypatch)
    for steps in on_threads(Meeting(2, False), change_after_many_parts):
        assert steps == [0, 4, 5, 6]


def test_the_last_step_after_a_restart_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seat_loaders(monkeypatch)
    first, second = on_threads(Meeting(2, False), tail_of_a_resumed_loader)
    assert first[0] == [3, 7]
    assert first[1] == second[1]
