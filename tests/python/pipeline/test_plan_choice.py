# SPDX-License-Identifier: Apache-2.0
"""The choices and messages of plan="auto": the number of pipelines, devices of one kind alone, chunks; and the
profile that it writes."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import atoll
from atoll.cli import app
from atoll.pipeline.plan_choice import best_plan, simulated_seconds
from atoll.pipeline.planner_request import ask, plan_of
from atoll.pipeline.reporting import verdict, warn_of_one_kind
from atoll.pipeline.schedules import KINDS
from pipeline_models import MODELS, SEED, alone, batch, check_same, llama, train_alone, train_together
from support import Ranks, later, raises
from test_planner_request import rank, request


def test_two_pipelines_where_they_are_faster() -> None:
    """With two equal devices one pipeline has to fill and drain, and two pipelines side by side do not."""
    asked = request([rank("a", 0, 1.0)] * 2, replicas=[1, 2], micro_batches=None)
    assert asked["replicas"] == [1, 2]
    plan = best_plan(asked, KINDS["1f1b"])
    assert plan.shares == [2, 2]
    assert [len(pipe.stages) for pipe in plan.pipes] == [1, 1]
    one = best_plan({**asked, "replicas": 1}, KINDS["1f1b"])
    assert [len(pipe.stages) for pipe in one.pipes] == [2]
    assert plan.answer["seconds"] < one.answer["seconds"]
    assert plan.answer["bound"] <= one.answer["bound"]


def test_numbers_of_pipelines_that_the_schedule_cannot_have() -> None:
    """A slow pipeline of two stages would get one of four micro-batches, and 1f1b needs two."""
    ranks = [rank("a", 0, 1.0)] * 2 + [rank("b", 0, 3.0)] * 2
    asked = request(ranks, replicas=[1, 2], micro_batches=None)
    for kind in (KINDS["1f1b"], KINDS["gpipe"]):
        found = best_plan({**asked, "schedule": kind.name}, kind)
        for pipe in found.pipes:
            assert kind.is_possible(pipe.micro_batches, len(pipe.ranks), len(pipe.stages))
        for count in (1, 2):
            of_count = best_plan({**asked, "schedule": kind.name, "replicas": count}, kind)
            assert found.answer["seconds"] <= of_count.answer["seconds"]
    few = {**asked, "batch": 6, "replicas": [2]}
    with pytest.raises(ValueError, match=r"the 3 micro-batches .* use micro_batches=3"):
        best_plan(few, KINDS["1f1b"])


def test_one_kind_that_is_faster_alone(caplog: pytest.LogCaptureFixture) -> None:
    asked = request([rank("a", 0, 1.0), rank("b", 1, 100.0)], replicas=1, micro_batches=None)
    answer = best_plan(asked, KINDS["1f1b"]).answer
    assert answer["homogeneous"]["wins"]
    with caplog.at_level(logging.WARNING, "atoll.plan"):
        warn_of_one_kind(answer)
    (text,) = [record.getMessage() for record in caplog.records]
    for words in (
        "rank 0 alone (a, island 0",
        " % less than the ",
        "this job uses all ranks",
        "start a job with rank 0 only",
    ):
        assert words in text
    lines = list(verdict(answer, []))
    assert "no plan takes less than" in lines[0]
    assert lines[1].endswith("leave the others out")


def test_one_kind_that_is_slower_alone(caplog: pytest.LogCaptureFixture) -> None:
    asked = request([rank("a", 0, 1.0), rank("b", 1, 1.1)], replicas=1, micro_batches=None)
    answer = best_plan(asked, KINDS["1f1b"]).answer
    with caplog.at_level(logging.WARNING, "atoll.plan"):
        warn_of_one_kind(answer)
        warn_of_one_kind({})
    assert not caplog.records
    (_, line, measured) = verdict(answer, [2.0, 1.0, 4.0])
    assert "all together are 1." in line
    assert measured == "Measured on this rank: 2 s (median of the last 3 steps)"
    assert list(verdict({}, [])) == []


def test_chunks_are_named_or_fewer() -> None:
    ranks = [rank("a", 0, 1.0), rank("a", 0, 1.5)]
    for chunks, stages in ((1, 2), (2, 4), (3, 6), (4, 6)):  # of six items
        asked = request(ranks, schedule="interleaved", chunks=chunks)
        (pipe,) = best_plan(asked, KINDS["interleaved"]).pipes
        assert [stage.rank for stage in pipe.stages] == pipe.ranks * (stages // 2)
        assert [stage.first for stage in pipe.stages[1:]] == [stage.last for stage in pipe.stages[:-1]]
        assert (pipe.stages[0].first, pipe.stages[-1].last, len(pipe.stages)) == (0, 6, stages)
    tight = request([rank("a", 0, 1.0, 1 << 30), rank("a", 0, 1.0, 1 << 30)], schedule="interleaved", chunks=2)
    plan = best_plan(tight, KINDS["interleaved"])
    needed = [0.0, 0.0]
    for place, stage in enumerate(plan.answer["pipelines"][0]["chunked"]["stages"]):
        needed[place % 2] += stage["memory_bytes"]
    tight["devices"][0]["memory_bytes"] = max(needed) * 0.9 / (1 - tight["margin"])
    with pytest.raises(ValueError, match="no plan fits"):
        best_plan(tight, KINDS["interleaved"])


def open_body(rank: int, schedule: str, **more: Any) -> None:
    """The user does not give the number of pipelines."""
    pipe = atoll.pipeline.Pipeline(
        MODELS["gpt2"], batch(16)[0], schedule=schedule, replicas="auto", seed=SEED,
        settings=atoll.pipeline.Settings(sizes=[2, 4]), **more,
    )  # fmt: skip
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, pipe.plan.to_json()["pipes"])
    assert all(each == told[0] for each in told)
    assert pipe.plan.answer["replicas"] == len(pipe.plan.pipes)
    lines = str(pipe).splitlines()
    assert sum(line.startswith("pipeline ") for line in lines) == sum(len(pipe.stages) for pipe in pipe.plan.pipes)
    assert sum(line.startswith("Atoll: 16 samples take ") for line in lines) == 1
    reference = alone(MODELS["gpt2"])
    train_alone(reference, 2, 16)
    train_together(pipe, 2, 16)
    check_same(pipe, reference)
    assert str(pipe).splitlines()[-1].startswith("Measured on this rank: ")


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", later("gpipe"), later("interleaved")])
def test_an_open_number_of_pipelines(ranks: Ranks, schedule: str) -> None:
    ranks.run(open_body, schedule)


def drawing_body(rank: int) -> None:
    """Dropout draws random numbers while it is measured, so no earlier profile is used."""
    torch.manual_seed(rank)
    before = torch.get_rng_state()
    settings = atoll.pipeline.Settings(sizes=[2], reuse=False)
    atoll.pipeline.Pipeline(lambda: llama(attention_dropout=0.5), batch(16)[0], seed=SEED, settings=settings)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_measuring_draws_no_random_numbers(ranks: Ranks) -> None:
    ranks.run(drawing_body)


@pytest.mark.parametrize("ranks", ["A"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_one_rank_has_all_stages(ranks: Ranks, schedule: str) -> None:
    ranks.run(open_body, schedule)


def wrong_body(rank: int) -> None:
    def made(**arguments: Any) -> atoll.pipeline.Pipeline:
        return atoll.pipeline.Pipeline(MODELS["gpt2"], batch(8)[0], **arguments)

    with raises(ValueError, "micro_batches=4", "replicas='auto'", "remove micro_batches"):
        made(replicas="auto", micro_batches=4)
    with raises(ValueError, "replicas='auto'", "plan='auto'", "pass the number"):
        made(replicas="auto", plan=[2, 2], micro_batches=4)
    with raises(ValueError, "replicas='two'", "a number of pipelines"):
        made(replicas="two")
    pipe = made(plan=[2, 2], micro_batches=4)
    with raises(ValueError, "save_profile", "plan='auto'"):
        pipe.save_profile("nowhere.json")
    assert not any(line.startswith(("Atoll", "Measured")) for line in str(pipe).splitlines())


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_what_cannot_be_chosen(ranks: Ranks) -> None:
    ranks.run(wrong_body)


def profiled_body(rank: int, path: str, schedule: str) -> None:
    pipe = atoll.pipeline.Pipeline(MODELS["gpt2"], batch(8)[0], micro_batches=4, schedule=schedule)
    pipe.save_profile(path)
    assert Path(path).exists() or rank != 0


def atoll_run(*arguments: str) -> str:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_profile_prices_plans_that_are_made_by_hand(ranks: Ranks, tmp_path: Path, schedule: str) -> None:
    profile, hand, priced = (str(tmp_path / name) for name in ("profile.json", "hand.json", "priced.json"))
    ranks.run(profiled_body, profile, schedule)
    found = json.loads(atoll_run("plan", "layers", profile, "--json", "-"))
    device = found["pipelines"][0]["stages"][0]["device"], found["pipelines"][0]["stages"][1]["device"]
    stages = [{"items": items, "device": name} for items, name in zip(([0, 1], [1, 7]), device, strict=True)]
    Path(hand).write_text(json.dumps({"micro_batch": 2, "pipelines": [{"micro_batches": 4, "stages": stages}]}))
    atoll_run("plan", "layers", profile, "--plan", hand, "--json", priced)
    answer = json.loads(Path(priced).read_text())
    assert answer["seconds"] >= found["seconds"] * (1 - 1e-9), "the planner's is the fastest"
    simulated = json.loads(atoll_run("simulate", profile, "--layers", priced, "--json", "-"))
    assert len(simulated["stages"]) == (4 if schedule == "interleaved" else 2)
    (pipeline,) = answer["pipelines"]
    said = pipeline["chunked"]["seconds"] if schedule == "interleaved" else answer["seconds"]
    assert 0 < simulated["step_seconds"] <= 1.5 * said


def published(slower: float, latency: float, blocks: int = 28) -> dict[str, Any]:
    """A block takes 3 s per micro-batch on the fast device, norm and head take as long as 2.32 blocks."""
    weights = [0.01, *[1.0] * blocks, 2.32]

    def item(place: int, weight: float) -> dict[str, Any]:
        times = {name: [[1, weight * by, 2 * weight * by]] for name, by in (("fast", 1.0), ("slow", slower))}
        kind = "block" if 0 < place <= blocks else "head" if place else "embedding"
        behind = {"output_bytes": 1} if place <= blocks else {}
        return {"name": f"item {place}", "kind": kind, "times": times, **behind}

    return {
        "items": [item(place, weight) for place, weight in enumerate(weights)],
        "devices": [{"name": "fast", "count": 1, "ranks": [0]}, {"name": "slow", "count": 1, "ranks": [1]}],
        "links": [{"between": ["fast", "slow"], "latency": latency, "seconds_per_byte": 0.0}],
        "batch": 4, "micro_batch": 1, "replicas": 1, "schedule": "1f1b",
    }  # fmt: skip


def test_a_schedule_hides_transfers_that_the_formula_counts() -> None:
    """The AMD and NVIDIA paper's Qwen2-7B, with the fast device first and 16 blocks on it. By the formula its stage
    also waits for two transfers per micro-batch, so that the slow device first seems to be faster."""
    asked = published(1.083, 0.9)
    (formula,) = plan_of(ask(asked)).pipes
    assert formula.ranks == [1, 0]
    plan = best_plan(asked, KINDS["1f1b"])
    (pipe,) = plan.pipes
    assert (pipe.ranks, pipe.stages[0].last) == ([0, 1], 17)
    assert simulated_seconds(asked, plan.answer) < 0.99 * simulated_seconds(asked, ask(asked))
    assert "in simulation" in plan.answer["notes"][-1]
    assert plan.answer["seconds"] >= plan.answer["bound"]


def test_no_choice_is_slower_than_the_formulas() -> None:
    for slower in (1.0, 1.03, 1.5, 4.0):
        for latency in (0.0, 0.3, 1.0, 5.0):
            asked = published(slower, latency, blocks=9)
            found = simulated_seconds(asked, best_plan(asked, KINDS["1f1b"]).answer)
            assert found <= simulated_seconds(asked, ask(asked)), (slower, latency)
