# SPDX-License-Identifier: Apache-2.0
"""The planner's Python interface: costs, splits, permutations."""

import json
import pickle
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import _C

COSTS = [
    _C.Cost.affine(0.5, 0.25),
    _C.Cost.saturating(0.5, 0.25, 12),
    _C.Cost.staircase(8, 0.5, 0.25),
    _C.Cost.table([(8, 1.0), (16, 1.5)]),
    _C.Cost.affine(0.5, 0.25).scaled(1.5).overlapped(0.3, [(0.5, 0.1), (1.0, 0.2)]),
]


def rank(cost: _C.Cost, **more: Any) -> dict[str, Any]:
    return {"cost": json.loads(cost.to_json()), **more}


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.shape)
def test_a_cost_survives_json_and_pickle(cost: _C.Cost) -> None:
    for again in (_C.Cost.from_json(cost.to_json()), pickle.loads(pickle.dumps(cost))):
        assert again == cost
        assert hash(again) == hash(cost)
        assert again.seconds(37) == cost.seconds(37)
    assert cost.most_within(cost.seconds(37), 1000) >= 37
    assert cost.compute_only().seconds(37) == cost.compute_seconds(37)
    assert json.loads(cost.to_json())["shape"] == cost.shape


def test_costs_are_fitted() -> None:
    cost, error = _C.fit_affine([(8, 1.3), (16, 2.1), (32, 3.7)])
    assert error < 1e-9
    assert cost.seconds(64) == pytest.approx(6.9)
    assert _C.fit_cost([(8, 1.0), (16, 1.0), (24, 5.0), (32, 5.0)])[0].shape == "table"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _C.Cost.affine(-1, 1), "fixed time is -1"),
        (lambda: _C.Cost.affine(0, float("nan")), "per sample is nan"),
        (lambda: _C.Cost.from_json("{}"), 'lacks "shape"'),
        (lambda: _C.fit_cost([]), "no points"),
        (lambda: _C.permutation(-1, 0, 0), "-1 values"),
        (lambda: _C.draw(torch.zeros(3), 1, 0, 0), "all weights are 0"),
        (lambda: _C.draw(torch.zeros(3, 2), 1, 0, 0), "2 dimensions"),
        (lambda: _C.index_hash(torch.zeros(3)), "give int64"),
        (lambda: _C.apportion([1, 1], 8, [(1, 3, 1), (1, 3, 1)]), "hold 6 samples"),
        (lambda: _C.split_batches([rank(COSTS[0], lest=1)], 8), 'unknown key "lest"'),
        (lambda: _C.split_batches([rank(COSTS[0], most=float("inf"))], 8), "not JSON compliant"),
        (lambda: _C.split_batches([rank(COSTS[0])], 8, "best"), "threshold or greedy"),
        (lambda: _C.plan_batches({"ranks": [rank(COSTS[0])]}), 'lacks "batch"'),
        (lambda: _C.plan_batches({"ranks": [rank(COSTS[0])], "batch": 8, "policy": "best"}), "give one of equal"),
        (lambda: _C.explain_batches({"ranks": [rank(COSTS[0], most=4)], "batch": 8}), "hold 4 samples"),
    ],
)
def test_a_wrong_call_is_a_value_error_that_names_it(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_batches_are_split() -> None:
    ranks = [rank(_C.Cost.affine(0, 1), name="fast"), rank(_C.Cost.affine(0, 3), name="slow", most=10)]
    assert _C.split_batches(ranks, 60) == ([50, 10], 50.0)
    assert _C.split_batches(ranks, 60, "greedy") == ([50, 10], 50.0)
    assert _C.apportion([3, 1], 60, [(0, None, 1), (0, 10, 1)]) == [50, 10]


def test_every_policy_plans() -> None:
    ranks = [rank(_C.Cost.affine(0, 1), name="fast", busy_watts=200, idle_watts=20),
             rank(_C.Cost.affine(0, 3), name="slow", busy_watts=100, idle_watts=10)]  # fmt: skip
    request = {"ranks": ranks, "batch": 64, "shares": [1, 1]}
    for policy in _C.policies():
        plan = _C.plan_batches({**request, "policy": policy})
        assert plan["policy"] == policy
        assert sum(plan["batches"]) == plan["total"] == 64
        assert plan["step"] == max(plan["seconds"])
    best = _C.plan_batches(request)
    assert best["policy"] == "minmax"
    assert best["batches"] == [48, 16]
    assert best["distance"] == 1
    explanation = _C.explain_batches(request)
    assert {plan["policy"] for plan in explanation["plans"]} == set(_C.policies())
    assert explanation["left_out"] == []
    assert best in explanation["plans"]
    assert explanation["balancenet-eq5"][0]["K"] == pytest.approx(0.75)


def two_ranks() -> dict[str, Any]:
    cost = _C.Cost.affine(0, 0.01)
    return {"ranks": [rank(cost, name="a"), rank(cost, name="b")], "batch": 60}


def window(step: int, seconds: float, batches: list[int]) -> dict[str, Any]:
    ranks = [{"seconds": 0.01 * batches[0], "batch": batches[0]}, {"seconds": seconds, "batch": batches[1]}]
    return {"step": step, "remaining": 1000, "ranks": ranks}


def test_the_adapter_follows_and_can_be_saved_replayed_and_frozen() -> None:
    adapter = _C.PlanAdapter(two_ranks())
    assert adapter.plan["batches"] == [30, 30]
    assert not adapter.observe(window(10, 0.6, [30, 30]))["changed"]
    state = json.loads(json.dumps(adapter.state_dict()))
    decision = adapter.observe(window(20, 0.6, [30, 30]))
    assert decision["changed"]
    assert decision["version"] == adapter.version == 2
    assert decision["factors"] == pytest.approx([1, 2])
    assert adapter.plan["batches"] == [40, 20]
    assert adapter.history == [{"step": 0, "batches": [30, 30]}, {"step": 20, "batches": [40, 20]}]

    restored = _C.PlanAdapter(two_ranks())
    restored.load_state_dict(state)
    assert restored.observe(window(20, 0.6, [30, 30])) == decision
    replayed = _C.PlanAdapter(two_ranks(), {"replay": adapter.history})
    assert replayed.observe(window(20, 0.3, [30, 30]))["changed"]
    assert replayed.plan["batches"] == [40, 20]
    frozen = _C.PlanAdapter(two_ranks())
    frozen.freeze()
    for step in (10, 20, 30):
        assert frozen.observe(window(step, 0.6, [30, 30]))["reason"] == "kept: frozen"
    with pytest.raises(ValueError, match="unknown key"):
        _C.PlanAdapter(two_ranks(), {"gian": 0.1})
    with pytest.raises(ValueError, match='lacks "history"'):
        frozen.load_state_dict({key: value for key, value in state.items() if key != "history"})


def test_the_example_of_the_documentation_gives_what_it_says() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/plan-batches.md").read_text()
    (ranks,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    plan = _C.plan_batches({"ranks": json.loads(ranks), "batch": 256})
    first, second = plan["batches"]
    assert (
        f"gives these ranks {first} and {second} samples; the step takes {plan['step']:.3f} s, "
        f"{plan['distance']} times the bound"
    ) in text


def test_any_batches_are_evaluated_and_membership_is_advised() -> None:
    plan = _C.evaluate_batches(two_ranks(), [40, 20])
    assert plan["step"] == pytest.approx(0.4)
    assert plan["distance"] == pytest.approx(4 / 3)
    with pytest.raises(ValueError, match="1 batches"):
        _C.evaluate_batches(two_ranks(), [60])
    table = [{"ranks": [0], "seconds": 0}, {"ranks": [0, 1], "seconds": 1}]
    advice = _C.advise_membership({**two_ranks(), "table": table})
    assert advice["best"] == [0]
    assert advice["all_step"] == pytest.approx(1.3)


def test_a_permutation_is_a_tensor_that_owns_its_memory() -> None:
    order = _C.permutation(100_000, 1, 0)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(100_000))
    assert _C.index_hash(order) == 9579450287067303561
    assert _C.index_hash(order) != _C.index_hash(_C.permutation(100_000, 1, 1))
    assert _C.permutation(0, 1, 0).numel() == 0
    drawn = _C.draw(torch.tensor([0.0, 1.0, 3.0]), 1000, 1, 0)
    assert drawn.dtype == torch.int64
    assert set(drawn.tolist()) == {1, 2}


def words_of(seed: int, epoch: int) -> Iterator[int]:
    """Philox4x32-10, a second implementation."""
    mask = 0xFFFFFFFF
    block = 0
    while True:
        counter = [block & mask, block >> 32, epoch & mask, epoch >> 32 | 1 << 24]
        key = [seed & mask, seed >> 32]
        for _ in range(10):
            first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
            counter = [(second >> 32) ^ counter[1] ^ key[0], second & mask,
                       (first >> 32) ^ counter[3] ^ key[1], first & mask]  # fmt: skip
            key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
        yield from counter
        block += 1


def permutation_of(size: int, seed: int, epoch: int) -> list[int]:
    words = words_of(seed, epoch)
    values = list(range(size))
    for last in range(size - 1, 0, -1):
        bound = last + 1
        product = next(words) * bound
        while product & 0xFFFFFFFF < (1 << 32) % bound:
            product = next(words) * bound
        place = product >> 32
        values[last], values[place] = values[place], values[last]
    return values


@pytest.mark.parametrize(("size", "seed", "epoch"), [(1, 0, 0), (1000, 7, 3), (5000, 2**63 + 11, 2**40 + 5)])
def test_the_permutation_is_philox_and_fisher_yates(size: int, seed: int, epoch: int) -> None:
    assert _C.permutation(size, seed, epoch).tolist() == permutation_of(size, seed, epoch)


def test_the_hash_is_fnv() -> None:
    values = [3, -1, 2**40]
    expected = 0xCBF29CE484222325
    for byte in struct.pack("<3q", *values):
        expected = (expected ^ byte) * 0x100000001B3 % 2**64
    assert _C.index_hash(torch.tensor(values)) == expected
