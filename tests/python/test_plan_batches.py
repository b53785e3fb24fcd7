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
from atoll.plan import (
    AdapterOptions,
    BatchRequest,
    Cost,
    Decision,
    Network,
    Observation,
    PlanAdapter,
    PlanChange,
    Rank,
    Window,
    advise_membership,
    batch_policies,
    compare_policies,
    draw,
    evaluate_batches,
    fit_cost,
    index_hash,
    permutation,
    plan_batches,
)

COSTS = [
    Cost.affine(0.5, 0.25),
    Cost.saturating(0.5, 0.25, 12),
    Cost.staircase(8, 0.5, 0.25),
    Cost.table([(8, 1.0), (16, 1.5)]),
    Cost.affine(0.5, 0.25).scaled(1.5).overlapped(0.3, [(0.5, 0.1), (1.0, 0.2)]),
]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.shape)
def test_a_cost_survives_json_and_pickle(cost: Cost) -> None:
    for again in (Cost.from_json(cost.to_json()), pickle.loads(pickle.dumps(cost))):
        assert again == cost
        assert hash(again) == hash(cost)
        assert again.seconds(37) == cost.seconds(37)
    assert json.loads(cost.to_json())["shape"] == cost.shape


def test_costs_are_fitted() -> None:
    cost, error = fit_cost([(8, 1.3), (16, 2.1), (32, 3.7)])
    assert error < 1e-9
    assert cost.seconds(64) == pytest.approx(6.9)
    assert fit_cost([(8, 1.0), (16, 1.0), (24, 5.0), (32, 5.0)])[0].shape == "table"


def plan_of(rank: Rank | dict[str, Any], policy: str | None = None) -> Any:
    return plan_batches(BatchRequest([rank], 8, policy))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Cost.affine(-1, 1), "fixed time is -1"),
        (lambda: Cost.affine(0, float("nan")), "per sample is nan"),
        (lambda: Cost.from_json("{}"), 'lacks "shape"'),
        (lambda: fit_cost([]), "no points"),
        (lambda: permutation(-1, 0, 0), "-1 values"),
        (lambda: draw(torch.zeros(3), 1, 0, 0), "all weights are 0"),
        (lambda: draw(torch.zeros(3, 2), 1, 0, 0), "2 dimensions"),
        (lambda: index_hash(torch.zeros(3)), "give int64"),
        (lambda: _C.apportion([1, 1], 8, [(1, 3, 1), (1, 3, 1)]), "hold 6 samples"),
        (lambda: plan_of({"cost": COSTS[0], "lest": 1}), 'unknown key "lest"'),
        (lambda: plan_of(Rank(COSTS[0], busy_watts=float("inf"))), "not JSON compliant"),
        (lambda: plan_of({}), 'lacks "cost"'),
        (lambda: plan_of(Rank(COSTS[0]), "best"), "give one of equal"),
        (lambda: compare_policies(BatchRequest([Rank(COSTS[0], most=4)], 8)), "hold 4 samples"),
        (lambda: _C.plan_batches({"ranks": []}), 'lacks "batch"'),
    ],
)
def test_a_wrong_call_is_a_value_error_that_names_it(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_batches_are_split() -> None:
    ranks = [Rank(Cost.affine(0, 1), name="fast"), Rank(Cost.affine(0, 3), name="slow", most=10)]
    plan = plan_batches(BatchRequest(ranks, 60))
    assert (plan.batches, plan.step, plan.names) == ([50, 10], 50.0, ["fast", "slow"])
    assert _C.apportion([3, 1], 60, [(0, None, 1), (0, 10, 1)]) == [50, 10]


def test_every_policy_plans() -> None:
    ranks = [Rank(Cost.affine(0, 1), name="fast", busy_watts=200, idle_watts=20),
             Rank(Cost.affine(0, 3), name="slow", busy_watts=100, idle_watts=10)]  # fmt: skip
    for policy in batch_policies():
        plan = plan_batches(BatchRequest(ranks, 64, policy, shares=[1, 1]))
        assert plan.policy == policy
        assert sum(plan.batches) == plan.total == 64
        assert plan.step == max(plan.seconds)
    best = plan_batches(BatchRequest(ranks, 64, shares=[1, 1]))
    assert best.policy == "minmax"
    assert best.batches == [48, 16]
    assert best.distance == 1
    compared = compare_policies(BatchRequest(ranks, 64, shares=[1, 1]))
    assert {plan.policy for plan in compared.plans} == set(batch_policies())
    assert compared.left_out == []
    assert best in compared.plans
    assert compared.balancenet_eq5[0].key == pytest.approx(0.75)
    (left_out,) = compare_policies(BatchRequest(ranks, 64)).left_out
    assert (left_out.policy, "needs shares" in left_out.reason) == ("fixed", True)


def two_ranks() -> BatchRequest:
    cost = Cost.affine(0, 0.01)
    return BatchRequest([Rank(cost, name="a"), Rank(cost, name="b")], 60)


def window(step: int, seconds: float, batches: list[int]) -> Window:
    return Window(step, [Observation(batches[0], 0.01 * batches[0]), Observation(batches[1], seconds)], remaining=1000)


def test_the_adapter_follows_and_can_be_saved_replayed_and_frozen() -> None:
    adapter = PlanAdapter(two_ranks())
    assert adapter.plan.batches == [30, 30]
    assert not adapter.observe(window(10, 0.6, [30, 30])).changed
    state = json.loads(json.dumps(adapter.state_dict()))
    decision = adapter.observe(window(20, 0.6, [30, 30]))
    assert isinstance(decision, Decision)
    assert decision.changed
    assert decision.version == 2
    assert decision.factors == pytest.approx([1, 2])
    assert adapter.plan.batches == [40, 20]
    assert adapter.history == [PlanChange(0, [30, 30]), PlanChange(20, [40, 20])]

    restored = PlanAdapter(two_ranks())
    restored.load_state_dict(state)
    assert restored.observe(window(20, 0.6, [30, 30])) == decision
    replayed = PlanAdapter(two_ranks(), AdapterOptions(replay=adapter.history))
    assert replayed.observe(window(20, 0.3, [30, 30])).changed
    assert replayed.plan.batches == [40, 20]
    frozen = PlanAdapter(two_ranks())
    frozen.freeze()
    for step in (10, 20, 30):
        assert frozen.observe(window(step, 0.6, [30, 30])).reason == "kept: frozen"
    with pytest.raises(ValueError, match="windows is 0"):
        PlanAdapter(two_ranks(), AdapterOptions(windows=0))
    with pytest.raises(ValueError, match='lacks "history"'):
        frozen.load_state_dict({key: value for key, value in state.items() if key != "history"})


def test_the_example_of_the_documentation_gives_what_it_says() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/plan-batches.md").read_text()
    (ranks,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    plan = plan_batches(BatchRequest(json.loads(ranks), 256))
    first, second = plan.batches
    assert (
        f"gives these ranks {first} and {second} samples; the step takes {plan.step:.3f} s, "
        f"{plan.distance} times the bound"
    ) in text


def test_any_batches_are_evaluated_and_membership_is_advised() -> None:
    plan = evaluate_batches(two_ranks(), [40, 20])
    assert plan.step == pytest.approx(0.4)
    assert plan.distance == pytest.approx(4 / 3)
    with pytest.raises(ValueError, match="1 batches"):
        evaluate_batches(two_ranks(), [60])
    advice = advise_membership(two_ranks().ranks, 60, seconds={(0,): 0, (0, 1): 1})
    assert advice.best == [0]
    assert advice.all_step == pytest.approx(1.3)
    far = Network(1e9, islands=[0, 1], inside_bytes_per_second=[1e9, 1e9], bridge_bytes_per_second=1e6)
    assert len(advise_membership(two_ranks().ranks, 60, network=far).best) == 1
    assert advise_membership(two_ranks().ranks, 60).best == [0, 1]


def test_a_permutation_is_a_tensor_that_owns_its_memory() -> None:
    order = permutation(100_000, 1, 0)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(100_000))
    assert index_hash(order) == 9579450287067303561
    assert index_hash(order) != index_hash(permutation(100_000, 1, 1))
    assert permutation(0, 1, 0).numel() == 0
    drawn = draw(torch.tensor([0.0, 1.0, 3.0]), 1000, 1, 0)
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
    assert permutation(size, seed, epoch).tolist() == permutation_of(size, seed, epoch)


def test_the_hash_is_fnv() -> None:
    values = [3, -1, 2**40]
    expected = 0xCBF29CE484222325
    for byte in struct.pack("<3q", *values):
        expected = (expected ^ byte) * 0x100000001B3 % 2**64
    assert index_hash(torch.tensor(values)) == expected
