# SPDX-License-Identifier: Apache-2.0
"""Pipelines whose boundaries and gradients cross between islands as packed blocks."""

import functools
import logging
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.pipeline.packing import Packing
from pipeline_models import MODELS, SEED, Tokens, Weighs, adam, batch, my_rows, square_sum
from support import Ranks, device, later, raises

STEPS, SAMPLES = 6, 8
LOSS_TOLERANCE = 0.01  # as bench/fewer_bytes.py states it
MAX_LOST = 0.05


def made(model: str = "llama", **more: Any) -> Any:
    given: dict[str, Any] = {"micro_batches": 4, "plan": "equal", "seed": SEED, "device": device()}
    return atoll.pipeline.Pipeline(functools.partial(MODELS[model], 4), batch(SAMPLES)[0], **{**given, **more})


def gradients(pipe: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.detach().cpu().clone() for name, parameter in pipe.named_parameters()}


def trained(pipe: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Trains repeatedly on one batch; returns the losses, and the gradients of the first step."""
    update, losses, first = adam(pipe.parameters()), [], {}
    rows = my_rows(pipe, *batch(SAMPLES))
    for _ in range(STEPS):
        losses.append(pipe.step(*rows).item())
        first = first or gradients(pipe)
        update.step()
    return [*losses, pipe.evaluate(*rows).item()], first


def difference(own: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Returns the difference of all gradients of this rank, and their norm."""
    both = [torch.cat([each[name].double().reshape(-1) for name in expected]) for each in (own, expected)]
    return float((both[0] - both[1]).norm() / both[1].norm())


def learns_alike_body(rank: int, packed: dict[str, Any], more: dict[str, Any]) -> None:
    exact, exact_gradients = trained(made(**more))
    pipe = made(**more, **packed)
    own, own_gradients = trained(pipe)
    pipe.close()
    for step, (mine, other) in enumerate(zip(own, exact, strict=True)):
        assert abs(mine / other - 1) < LOSS_TOLERANCE, f"step {step}: {mine} instead of {other}"
    assert own[-1] < 0.9 * own[0]
    if own_gradients.keys() != exact_gradients.keys():  # plan="auto" may have chosen another cut
        assert more["plan"] == "auto"
        return
    lost = difference(own_gradients, exact_gradients)
    assert 0 < lost < MAX_LOST, lost


@pytest.mark.parametrize("ranks", ["AB"], indirect=True)
@pytest.mark.parametrize(
    ("schedule", "plan"),
    [
        ("1f1b", [2, 2]), later("gpipe", [1, 3]), ("interleaved", [1, 1, 1, 1]), later("zero-bubble", [1, 3]),
        ("zbv", [1, 1, 1, 1]), later("1f1b", "auto"),
    ],
)  # fmt: skip
def test_packed_boundaries_learn_alike(ranks: Ranks, schedule: str, plan: list[int] | str) -> None:
    ranks.run(learns_alike_body, {"boundaries": "int8"}, {"schedule": schedule, "plan": plan})


REPLICAS = {"replicas": 2, "plan": [1, 3], "micro_batches": 2}


@pytest.mark.parametrize("ranks", ["ABBA"], indirect=True)
@pytest.mark.parametrize("boundaries", [None, "int8"])
def test_packed_gradients_learn_alike(ranks: Ranks, boundaries: str | None) -> None:
    ranks.run(learns_alike_body, {"gradients": "int8", "boundaries": boundaries}, REPLICAS)


@pytest.mark.parametrize("ranks", ["AB"], indirect=True)
def test_packed_gradients_of_a_shared_weight(ranks: Ranks) -> None:
    """Embedding and head share a weight, on two ranks."""
    ranks.run(learns_alike_body, {"gradients": "int8"}, {"model": "qwen2"})


def lost_for_good_body(rank: int) -> None:
    rows, steps = batch(SAMPLES), 8
    exact = made(**REPLICAS)
    exact.step(*my_rows(exact, *rows))
    expected = gradients(exact)
    pipe = made(**REPLICAS, gradients="int8")
    found = []
    for _ in range(steps):
        pipe.step(*my_rows(pipe, *rows))
        found.append(gradients(pipe))
    pipe.close()
    mean = {name: sum(each[name] for each in found) / steps for name in expected}
    once = difference(found[0], expected)
    assert 0 < difference(mean, expected) < 2 / steps * once


@pytest.mark.parametrize("ranks", ["ABBA"], indirect=True)
def test_rounding_errors_are_added_to_the_next_step(ranks: Ranks) -> None:
    ranks.run(lost_for_good_body)


def small(dtype: torch.dtype, **more: Any) -> Any:
    torch.manual_seed(4)
    model = nn.Sequential(Tokens(dtype).double(), Weighs())
    return atoll.pipeline.Pipeline(
        model, (torch.zeros(4, 3).double(), torch.zeros(4, 2).double()), items=["0", "1"], plan=[1, 1], loss=square_sum,
        micro_batches=2, **more,
    )  # fmt: skip


def unused_body(rank: int) -> None:
    pipe = small(torch.float64, replicas=2, gradients="int8")
    pipe.step(torch.ones(4, 3).double(), torch.ones(4, 2).double())
    assert {name: parameter.grad is None for name, parameter in pipe.named_parameters()} == (
        {"0.linear.weight": True, "0.linear.bias": True}
        if rank < 2
        else {"1.linear.weight": False, "1.linear.bias": False}
    )
    pipe.close()


@pytest.mark.parametrize("ranks", ["ABBA"], indirect=True)
def test_unused_parameters_have_no_gradient(ranks: Ranks) -> None:
    ranks.run(unused_body)


def errors_body(rank: int) -> None:
    with raises(ValueError, "int4", "int8"):
        made(boundaries="int4")
    with raises(ValueError, "gradients"):
        made(gradients=("int8", "fp8_e4m3")[rank])
    with raises(TypeError, "boundaries='int8'", "item '0'", "torch.bool", "(samples, 4)", "cut elsewhere"):
        small(torch.bool, boundaries="int8")
    made(boundaries="int8")
    made().step(*batch(SAMPLES))  # no rank hangs after errors


@pytest.mark.parametrize("ranks", ["AB"], indirect=True)
def test_errors(ranks: Ranks) -> None:
    ranks.run(errors_body)


class Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def one_island_body(rank: int) -> None:
    keep = Keep()
    logging.getLogger("atoll.packing").addHandler(keep)
    pipe = made(boundaries="int8", gradients="int8", model="qwen2")
    logging.getLogger("atoll.packing").removeHandler(keep)
    assert len(keep.lines) == (2 if rank == 0 else 0)
    assert all("all ranks are one island" in line and "packs nothing" in line for line in keep.lines)
    exact = made(model="qwen2")
    assert pipe.step(*batch(SAMPLES)) == exact.step(*batch(SAMPLES))
    assert all(torch.equal(value, gradients(exact)[name]) for name, value in gradients(pipe).items())


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_one_island_stays_exact(ranks: Ranks) -> None:
    ranks.run(one_island_body)


def test_the_planner_counts_what_is_sent() -> None:
    between = [torch.empty(1, 9, 64, dtype=torch.bfloat16, device="meta")] * 3
    packed = 33 / 32 / 2
    assert Packing("int8").link_ratio(between, 1) == packed
    assert Packing("int8", "int8").link_ratio(between, 2) == packed
    assert Packing("int8").link_ratio(between, 2) == 1  # gradients cross the same links and stay exact
    assert Packing(None, "int8").link_ratio(between, 2) == 1
    assert Packing("int8").link_ratio([torch.empty(1, 4, dtype=torch.bool, device="meta")], 1) == 1


@pytest.mark.parametrize("name", ["boundaries", "gradients"])
def test_other_backends_know_no_islands(name: str) -> None:
    with raises(ValueError, f"{name}='int8'", "only the backend atoll", "remove it"):
        Packing(**{name: "int8"}).check([], 0)
