# SPDX-License-Identifier: Apache-2.0
"""Every policy that follows the training's times: plans change where its rule says so, each rank makes the plans by
itself, and the training is that of one process with the same global batches."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import atoll
from atoll import _C
from atoll.loading import planner
from atoll.profiling.device import DeviceProfile, Measured
from atoll.watching.options import Watch
from support import Ranks, later
from test_following import Paced
from test_loader import BATCH, EXACT, SAMPLES, Numbers, check_exactly_once, dataset, on_all_ranks, train, wrapped
from training import check_close, check_equal_bits, network
from uneven_training import sgd

EPOCHS, SEED, EVERY = 4, 4, 2
SLOW_UNTIL = 8
WATTS = [(100.0, 10.0), (300.0, 10.0), (300.0, 10.0)]  # by rank
PROFILE = DeviceProfile(
    "made up", [Measured(size, 1e-3 * size) for size in (4, 8, 16)], operations=1e9, memory_used=1 << 20, latency=1e-4
)  # of every rank
EQUAL = [8, 8, 8]
# Rank 0 turns out to be four times as slow: it has a ninth of all operations per second, the others four ninths each.
SLOW = {
    ("balancenet-eq5", "literal"): [14, 16, 16],
    ("balancenet-eq5", "normalised"): [7, 9, 8],
    ("balancenet-alg1", "literal"): [6, 8, 8],
    ("balancenet-alg1", "normalised"): [6, 9, 9],
    ("kaitian", "normalised"): [3, 11, 10],
    ("kaitian-iterative", "normalised"): [3, 11, 10],
}
LITERAL = {"balancenet-eq5": [16, 16, 16], "balancenet-alg1": EQUAL}
CASES = [*SLOW, ("energy", "normalised"), ("random", "normalised")]


def four_times_as_slow(rank: int, step: int) -> float:
    """Returns the seconds per sample."""
    return 4e-3 if rank == 0 and step < SLOW_UNTIL else 1e-3


@contextlib.contextmanager
def made_up() -> Iterator[None]:
    """Replaces profiles by PROFILE, and checks that no rank sends its plan to others."""
    refused = mock.Mock(side_effect=AssertionError("one rank tells the others"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(planner, "measure", return_value=PROFILE))
        stack.enter_context(mock.patch.object(planner, "memory_used", return_value=1 << 20))
        for name in ("broadcast", "broadcast_object_list", "scatter", "scatter_object_list", "send", "isend"):
            stack.enter_context(mock.patch.object(dist, name, refused))
        yield


def alone(history: list[dict[str, Any]]) -> nn.Module:
    """Trains one process with the global batches of these plans."""
    model, data, step = network(), dataset(), 0
    update = sgd(model.parameters())
    for epoch in range(EPOCHS):
        order = torch.as_tensor(atoll.plan.permutation(SAMPLES, SEED, epoch))
        position = 0
        while position < SAMPLES:
            plan = [plan for plan in history if plan["step"] <= step][-1]
            inputs, targets, _ = data[order[position : position + sum(plan["batches"])]]
            position, step = position + len(inputs), step + 1
            update.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            update.step()
    return model


def run_live(rank: int, policy: str, form: str, lines: str) -> list[dict[str, Any]]:
    """Trains; returns the plans."""
    settings = atoll.training.Settings(form=form, update_interval=EVERY, check_replicas=0, watts=WATTS[rank],
                              watch=Watch(live=False, json_lines=lines))  # fmt: skip
    model = wrapped()
    with made_up():
        loader = atoll.DataLoader(Numbers(), BATCH, model=model, seed=SEED, policy=policy, settings=settings)
        Paced(rank, four_times_as_slow).put_into(loader)
        seen = train(model, loader, EPOCHS)
    check_exactly_once(seen)
    history = loader.planner.history()
    assert on_all_ranks(history) == [history] * dist.get_world_size()
    check_equal_bits(model)
    check_close(model.module, alone(history), EXACT)
    loader.planner._follower.watchers.close()
    return history


def check_told(history: list[dict[str, Any]], lines: Path) -> None:
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    told = [(event["step"], event["batches"]) for event in events if event.get("kind") == "new plan"]
    assert told == [(plan["step"], plan["batches"]) for plan in history[1:]]


@pytest.mark.parametrize(("policy", "form"), CASES)
@pytest.mark.parametrize("ranks", ["ABA"], indirect=True)
def test_changes_come_where_the_rule_says_so(ranks: Ranks, policy: str, form: str, tmp_path: Path) -> None:
    history, *_ = ranks.run(run_live, policy, form, str(tmp_path / "lines"))
    check_told(history, tmp_path / "lines")
    if policy == "random":
        check_random(history)
        return
    first = LITERAL[policy] if form == "literal" else EQUAL
    assert history[0] == {"step": 0, "batches": first}
    if policy.startswith("balancenet"):  # each new division at once, and also back
        assert history == [history[0], {"step": EVERY, "batches": SLOW[policy, form]},
                           {"step": SLOW_UNTIL, "batches": first}]  # fmt: skip
        return
    assert history[1] == {"step": 2 * EVERY, "batches": SLOW.get((policy, form), by_energy())}
    assert history[-1]["batches"] == EQUAL, "equally fast again"


def by_energy() -> list[int]:
    """Returns settings with which a sample costs 0.4 J on rank 0 while it is slow, and 0.3 J on the others."""
    ranks = [{"cost": {"shape": "affine", "fixed": 0, "per_sample": seconds}, "busy_watts": busy, "idle_watts": idle}
             for seconds, (busy, idle) in zip((4e-3, 1e-3, 1e-3), WATTS, strict=True)]  # fmt: skip
    batches: list[int] = _C.plan_batches({"ranks": ranks, "batch": BATCH, "policy": "energy"})["batches"]
    assert batches[0] == 1
    return batches


def check_random(history: list[dict[str, Any]]) -> None:
    """Checks that shares are drawn again in every window, whether faster or not."""
    ranks = [{"cost": {"shape": "affine", "fixed": 0, "per_sample": 1}}] * 3
    request = {"ranks": ranks, "batch": BATCH, "policy": "random", "seed": SEED}
    expected: list[dict[str, Any]] = []
    for window in range(EPOCHS * -(-SAMPLES // BATCH) // EVERY + 1):
        batches = _C.plan_batches({**request, "epoch": window})["batches"]
        if not expected or batches != expected[-1]["batches"]:
            expected.append({"step": window * EVERY, "batches": batches})
    assert len(expected) > 5
    assert history == expected


@pytest.mark.parametrize(("policy", "form"), [*CASES[:1], *(later(*case) for case in CASES[1:])])
@pytest.mark.parametrize("ranks", ["ab"], indirect=True)
def test_two_devices(ranks: Ranks, policy: str, form: str, tmp_path: Path) -> None:
    history, _ = ranks.run(run_live, policy, form, str(tmp_path / "lines"))
    check_told(history, tmp_path / "lines")
    assert len(history) > 1
    assert policy == "random" or history[1]["batches"][0] < history[1]["batches"][1]


def without_power(rank: int) -> None:
    settings = atoll.training.Settings(watts=(5, 1) if rank == 0 else None)
    with made_up(), pytest.raises(ValueError, match=r"that of rank 1 \(cpu\): pass Settings\(watts="):
        atoll.DataLoader(Numbers(), BATCH, model=wrapped(), policy="energy", settings=settings)


@pytest.mark.parametrize("ranks", ["ABA"], indirect=True)
def test_energy_requires_power_that_is_not_measured(ranks: Ranks) -> None:
    ranks.run(without_power)
