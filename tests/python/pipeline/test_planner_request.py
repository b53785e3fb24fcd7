# SPDX-License-Identifier: Apache-2.0
"""What is measured, the request to the planner, and how its answer is used."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import atoll
from atoll.pipeline.families import parts_of
from atoll.pipeline.initial import without_data
from atoll.pipeline.losses import Loss
from atoll.pipeline.measuring import Cost, Example, Measuring
from atoll.pipeline.plan import Pipe, Plan, Stage
from atoll.pipeline.plan_choice import with_possible_shares
from atoll.pipeline.planner_request import Link, Measured, Wish, classes_of, plan_of, request_of
from atoll.pipeline.schedules import KINDS
from atoll.pipeline.stage import Computing
from pipeline_models import (
    MODELS,
    SEED,
    TOKENS,
    VOCABULARY,
    WIDTH,
    alone,
    batch,
    check_same,
    train_alone,
    train_together,
)
from support import Ranks, crossed, later, raises

CPU = torch.device("cpu")


def measuring(name: str, computing: Computing | None = None) -> Measuring:
    whole, _ = without_data(lambda: MODELS[name](3))
    parts = parts_of(whole, None)
    return Measuring(whole, parts, Example(*batch(4)), Loss(), computing or Computing(), CPU, SEED, None)


@pytest.mark.parametrize("name", MODELS)
def test_items_that_are_alike_are_measured_once(name: str) -> None:
    kinds = measuring(name).kinds()
    assert len(kinds) == 6
    assert len(set(kinds)) == 4
    assert len(set(kinds[1:4])) == 1


@pytest.mark.parametrize("name", MODELS)
def test_costs(name: str) -> None:
    found = measuring(name).costs("never", [1, 4])
    assert [[cost.samples for cost in item] for item in found] == [[1, 4]] * 6
    for item in found:
        for cost in item:
            assert cost.forward > 0
            assert cost.backward > 0
    hidden = WIDTH * TOKENS * 8
    for small, large in found[1:4]:
        assert small.kept_bytes >= 4 * hidden, "a block keeps more than its input"
        assert large.kept_bytes > 3 * small.kept_bytes
    norm, head = found[4][1], found[5][1]
    assert norm.kept_bytes < found[1][1].kept_bytes
    assert head.kept_bytes >= 4 * VOCABULARY * (TOKENS - 1) * 8, "the loss keeps its scores"


def test_a_measurement_is_reused() -> None:
    mine = measuring("llama")
    name = mine.fingerprint([2], 1)
    assert name == measuring("llama").fingerprint([2], 1)
    assert mine.earlier(name) is None
    found = mine.costs(name, [2])
    assert mine.earlier(name) == found
    others = {
        mine.fingerprint([4], 1), mine.fingerprint([2], 2), measuring("qwen2").fingerprint([2], 1),
        measuring("llama", Computing(autocast=torch.bfloat16)).fingerprint([2], 1),
    }  # fmt: skip
    assert len(others | {name}) == 5


def rank(device: str, island: int, seconds: float, memory: int = 0, sizes: tuple[int, ...] = (2,)) -> Measured:
    costs = [Cost(size, seconds * size, 2 * seconds * size, seconds * size / 8, 100 * size) for size in sizes]
    return Measured(device, island, memory, [list(costs) for _ in range(6)])


def test_classes() -> None:
    ranks = [rank("a", 0, 1.0), rank("a", 0, 1.04), rank("a", 0, 1.2), rank("a", 1, 1.0), rank("b", 0, 1.0),
             rank("a", 0, 1.0, 5), rank("a", 0, 1.21)]  # fmt: skip
    assert sorted(classes_of(ranks).values()) == [[0, 1], [2, 6], [3], [4], [5]]
    assert len(classes_of(ranks)) == 5


def request(ranks: list[Measured], **wishes: Any) -> dict[str, Any]:
    whole, _ = without_data(lambda: MODELS["gpt2"](3))
    parts = parts_of(whole, None)
    hidden = WIDTH * TOKENS * 8
    links = [Link(0, 1, 1e-5, 1e-9), Link(0, 2, 2e-5, 4e-9), Link(1, 2, 3e-5, 3e-9)]
    links = [link for link in links if max(link.a, link.b) < len(ranks)]
    wish = Wish(**{"batch": 8, "schedule": "1f1b", "replicas": 1, "micro_batches": 4, **wishes})
    return request_of(whole, parts, [hidden] * 5, ranks, links, wish)


def test_request() -> None:
    asked = request([rank("a", 0, 1.0), rank("a", 0, 1.02), rank("b", 1, 2.0, 1 << 30)])
    names = [device["name"] for device in asked["devices"]]
    assert [device["ranks"] for device in asked["devices"]] == [[0, 1], [2]]
    assert ["memory_bytes" in device for device in asked["devices"]] == [False, True]
    assert [item["name"] for item in asked["items"]][::5] == ["transformer.wte", "lm_head"]
    assert [item["kind"] for item in asked["items"]] == ["embedding", "block", "block", "block", "norm", "head"]
    block = asked["items"][1]
    assert block["times"] == {
        names[0]: [[2, pytest.approx(2.02), pytest.approx(4.04), pytest.approx(0.2525)]], names[1]: [[2, 4.0, 8.0, 0.5]]
    }  # fmt: skip
    parameters = sum(each.numel() for each in MODELS["gpt2"](3).transformer.h[0].parameters())
    assert block["weight_bytes"] == block["gradient_bytes"] == 8 * parameters
    assert block["optimiser_bytes"] == 16 * parameters
    assert block["kept_bytes"] == block["recompute_bytes"] == 100
    assert block["output_bytes"] == WIDTH * TOKENS * 8
    assert "recompute_bytes" not in asked["items"][5]
    assert "output_bytes" not in asked["items"][5]
    shared = 8 * VOCABULARY * WIDTH
    assert asked["ties"] == [{"items": ["transformer.wte", "lm_head"], "apart": True, "weight_bytes": shared,
                              "gradient_bytes": shared, "optimiser_bytes": 2 * shared}]  # fmt: skip
    slowest = {tuple(link["between"]): link["seconds_per_byte"] for link in asked["links"]}
    assert slowest == {(names[0], names[0]): 1e-9, tuple(sorted(names)): 4e-9}
    assert asked["micro_batch"] == 2
    assert asked["batch"] == 8
    assert "chunks" not in asked
    assert request([rank("a", 0, 1.0)] * 3, schedule="interleaved")["chunks"] == 1


def test_a_device_that_holds_no_item() -> None:
    with pytest.raises(ValueError, match=r"rank 1 \(b\) cannot hold item 'embedding'.*more micro_batches"):
        request([rank("a", 0, 1.0), rank("b", 1, 1.0, 1, ()), rank("a", 0, 1.0)])


def test_answer() -> None:
    stage = {"rank": 1, "items": [0, 4], "recompute": True}
    answer = {"pipelines": [{"micro_batches": 3, "stages": [stage, {**stage, "rank": 0, "items": [4, 6]}]}]}
    plan = plan_of(answer)
    assert plan.pipes[0].stages == (Stage(0, 4, 1, True), Stage(4, 6, 0, True))
    assert plan.shares == [3]
    assert plan.answer == answer


def test_an_answer_that_leaves_stages_open() -> None:
    stage = {"rank": 0, "items": [0, 6], "recompute": False}
    answer = {"chunks": 2, "pipelines": [{"micro_batches": 3, "stages": [stage]}]}
    with pytest.raises(ValueError, match=r'the plan \'p.json\' has "chunks": 2.*plan with fewer "chunks"'):
        plan_of(answer, "the plan 'p.json'")
    assert plan_of({**answer, "chunks": 1}).pipes[0].stages == (Stage(0, 6, 0),)
    answer["pipelines"][0]["chunked"] = {"stages": [{**stage, "items": [0, 2]}, {**stage, "items": [2, 6]}]}
    assert plan_of(answer).pipes[0].stages == (Stage(0, 2, 0), Stage(2, 6, 0))


def test_shares_that_the_schedule_cannot_have() -> None:
    """One of two pipelines with two stages would have a single micro-batch."""
    ranks = [rank("a", 0, 1.0), rank("a", 0, 1.0), rank("b", 0, 3.0, 1 << 30), rank("b", 0, 3.0, 1 << 30)]
    asked = request(ranks, replicas=2, micro_batches=2)
    names = [device["name"] for device in asked["devices"]]

    def answer(*shares: int) -> dict[str, Any]:
        pipelines = [
            {"micro_batches": share, "stages": [
                {"items": [0, 3], "device": name, "rank": first, "recompute": False},
                {"items": [3, 6], "device": name, "rank": first + 1, "recompute": False},
            ]} for share, name, first in zip(shares, names, (0, 2), strict=True)
        ]  # fmt: skip
        return {"micro_batch": 2, "chunks": 1, "pipelines": pipelines, "exact": {"search": True}, "notes": ["before"]}

    plan = plan_of(answer(3, 1))
    assert with_possible_shares(plan, KINDS["gpipe"], asked) is plan
    found = with_possible_shares(plan, KINDS["1f1b"], asked)
    assert found.shares == [2, 2]
    assert [pipe.stages for pipe in found.pipes] == [pipe.stages for pipe in plan.pipes]
    assert found.answer["feasible"]
    assert found.answer["seconds"] > 0
    assert found.answer["exact"] == {"search": False}
    assert found.answer["notes"][0] == "before"
    assert "[2, 2], not [3, 1], which 1f1b does not support" in found.answer["notes"][1]
    with pytest.raises(ValueError, match=r"the 3 micro-batches .* \[2, 2\] stages: use micro_batches=2 .*'gpipe'"):
        with_possible_shares(plan_of(answer(2, 1)), KINDS["1f1b"], asked)
    for device in asked["devices"]:
        device["memory_bytes"] = 1
    with pytest.raises(ValueError, match=r"supports \[2, 2\] instead of .* but these exceed the devices' memory: use"):
        with_possible_shares(plan, KINDS["1f1b"], asked)


def auto_body(rank: int, schedule: str, replicas: int, own: dict[str, Any]) -> None:
    pipe = atoll.pipeline.Pipeline(
        MODELS["gpt2"], batch(16)[0], schedule=schedule, replicas=replicas, seed=SEED, **own
    )  # fmt: skip
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, pipe.plan.to_json()["pipes"])
    assert all(each == told[0] for each in told)
    assert pipe.plan.answer["feasible"]
    assert pipe.plan.answer["seconds"] >= pipe.plan.answer["bound"] > 0
    assert sum(pipe.plan.shares) * pipe.plan.answer["micro_batch"] == 16
    for each in pipe.plan.pipes:
        assert len(each.stages) == len(each.ranks) * (2 if schedule == "interleaved" else 1)
    reference = alone(MODELS["gpt2"])
    train_alone(reference, 2, 16)
    train_together(pipe, 2, 16)
    check_same(pipe, reference)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize(("replicas", "schedule"), crossed([1, 2], ["1f1b", "gpipe"]))
def test_a_plan_of_measurements(ranks: Ranks, schedule: str, replicas: int) -> None:
    ranks.run(auto_body, schedule, replicas, {"micro_batches": 4})


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", later("zero-bubble")])
def test_a_plan_of_two_ranks(ranks: Ranks, schedule: str) -> None:
    ranks.run(auto_body, schedule, 1, {"micro_batches": 4})
    ranks.run(auto_body, schedule, 1, {"settings": atoll.pipeline.Settings(sizes=[2, 4])})


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_sizes_that_the_schedule_cannot_have_are_left_out(ranks: Ranks) -> None:
    """With 16 samples in one micro-batch, 1f1b has too few micro-batches for two stages."""
    ranks.run(auto_body, "1f1b", 1, {"settings": atoll.pipeline.Settings(sizes=[4, 16])})


def no_room_body(rank: int) -> None:
    settings = atoll.pipeline.Settings(memory_bytes=60_000, margin=0)
    with raises(ValueError, "no plan fits the devices' memory", "Nearest: "):
        atoll.pipeline.Pipeline(MODELS["gpt2"], batch(8)[0], micro_batches=4, settings=settings)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_no_room(ranks: Ranks) -> None:
    ranks.run(no_room_body)


def refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def as_said(text: str) -> Plan:
    """Returns the plan that the text names as the nearest one, which depends on the measured times."""
    names = parts_of(without_data(MODELS["gpt2"])[0], None).names
    stages = []
    for line in text.split("nearest that fits: ")[1].split(";")[0].split(", then "):
        held, rank = line.split(" on rank ")
        first, _, last = held.partition(" to ")
        stages.append(Stage(names.index(first), names.index(last or first) + 1, int(rank)))
    return Plan((Pipe(tuple(stages), 4),))


def given_body(rank: int) -> None:
    def made(plan: Any, of_rank: dict[int, int], **more: Any) -> atoll.pipeline.Pipeline:
        settings = atoll.pipeline.Settings(memory_bytes=of_rank.get(rank), margin=0)
        arguments = {"plan": plan, "micro_batches": 4, "settings": settings, "seed": SEED, **more}
        return atoll.pipeline.Pipeline(MODELS["gpt2"], batch(8)[0], **arguments)

    limit = 400_000
    with raises(ValueError, "the plan does not fit", "stage 1 (block 1 to head) needs ", " bytes on rank 1",
                f"leave {limit}; nearest that fits: ", "plan='auto'"):  # fmt: skip
        made([1, 3], {1: limit})
    made(as_said(refusal(lambda: made([1, 3], {1: limit}))), {1: limit})
    for plan in ("equal", made([1, 3], {}).plan, made([1, 3], {}).plan.to_json()):
        with raises(ValueError, "the plan does not fit", "no plan of these ranks", "more on each device"):
            made(plan, {0: 10_000, 1: 10_000})
    with raises(ValueError, "stage 0 (", "and stage 2 (", " bytes on rank 0, but"):
        made([1, 1, 1, 1], {0: 10_000}, schedule="interleaved")
    with raises(ValueError, "stage 0 (", "and stage 3 (", " bytes on rank 0, but"):
        made([1, 1, 1, 1], {0: 10_000}, schedule="zbv")
    with raises(ValueError, "nearest that fits, with one stage on each rank and schedule='zero-bubble': embedding"):
        made([1, 1, 1, 1], {0: 300_000}, schedule="zbv")
    pipe = made([1, 3], {0: 10**7, 1: 10**7})
    assert pipe.step(*batch(8)).isfinite()
    for schedule in ("interleaved", "zbv"):
        made([1, 1, 1, 1], {0: 10**7}, schedule=schedule)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_a_plan_of_the_users_is_held_to_the_memory_that_is_given(ranks: Ranks) -> None:
    ranks.run(given_body)


def test_the_cache_is_the_tests_own() -> None:
    assert "atoll-cache-" in os.environ["ATOLL_CACHE"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"memory_bytes": 0}, "above 0"), ({"margin": 1.0}, "below 1"), ({"optimiser_states": -1}, "at least 0"),
     ({"chunks": 0}, "at least 1")],
)  # fmt: skip
def test_settings(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        atoll.pipeline.Settings(**wrong)
