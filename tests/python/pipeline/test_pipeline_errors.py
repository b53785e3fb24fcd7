# SPDX-License-Identifier: Apache-2.0
"""Impossible requests are errors on every rank, which name what would work."""

from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.pipeline.plan import Pipe, Plan, Stage
from pipeline_models import MODELS, batch
from support import Ranks, raises

INPUTS, LABELS = batch(4)
GOOD = Plan((Pipe((Stage(0, 3, 0), Stage(3, 7, 1)), 2),))


def made(model: Any = MODELS["gpt2"], **arguments: Any) -> "atoll.pipeline.Pipeline":
    return atoll.pipeline.Pipeline(model, INPUTS, **{"plan": [2, 2], "micro_batches": 2, **arguments})


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def views() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    return model


class Ruled(nn.Sequential):
    """A module with an initialisation rule of its own for parameters in several items."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 3))

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter)


def arguments_body(rank: int) -> None:
    for parts, arguments in (
        (("[15, 17]", "4 blocks", "nearest: [2, 2]"), {"plan": [15, 17]}),
        (("stage 1 is empty", "nearest"), {"plan": [2, 0, 1, 1], "schedule": "interleaved"}),
        (("3 stages on 2 ranks",), {"plan": [1, 2, 1]}),
        (("3 pipelines", "2 ranks", "start 3 ranks"), {"replicas": 3}),
        (
            ("rank 2", "start 3 ranks", "nearest: plan=[2, 2], micro_batches=2"),
            {"plan": Plan((Pipe((Stage(0, 3, 0), Stage(3, 7, 2)), 2),))},
        ),
        (("'1f1b'", "2 stages into 1 micro-batches", "use 2"), {"micro_batches": 1}),
        (("micro_batches has 3 numbers for 1 pipelines",), {"micro_batches": [1, 2, 3]}),
        (("micro_batches is missing",), {"micro_batches": None}),
        (("'zero-bubble'", "recompute=False"), {"schedule": "zero-bubble", "recompute": True}),
        (("recompute has 3 values for 2 stages",), {"recompute": [True, False, True]}),
        (("'zbv' has 2 stages on each rank",), {"schedule": "zbv"}),
        (("unknown schedule '1b'",), {"schedule": "1b"}),
        (("float16", "torch.bfloat16"), {"autocast": torch.float16}),
        (("Sequential is not a model that atoll.pipeline can divide", "items="), {"model": network}),
        (("two views of one memory",), {"model": views, "items": ["0", "1"]}),
        (("no module 'x'",), {"items": ["x"]}),
        (("plan 'best'", '"auto"'), {"plan": "best"}),
        (("auto", "'zbv'"), {"plan": "auto", "schedule": "zbv"}),
        (("4 samples", "3 micro-batches", "whole step"), {"plan": "auto", "micro_batches": 3}),
        (("micro_batches=3", "the plan has [2]", "remove it"), {"plan": GOOD, "micro_batches": 3}),
        (("micro_batches=[1]", "the plan has [2]"), {"plan": GOOD, "micro_batches": [1]}),
        (("replicas=2", "the plan has 1 pipelines"), {"plan": GOOD, "replicas": 2}),
        (("recompute=True", "the plan has [False, False]"), {"plan": GOOD, "recompute": True}),
        (
            ("planner's answer", '"chunks": 2', "on each rank", 'with fewer "chunks"'),
            {"plan": {"chunks": 2, "pipelines": []}},
        ),
        (("answer has no pipelines: no room", "that fits"), {"plan": {"feasible": False, "reason": "no room"}}),
        (("the model (Ruled)", "reset_parameters()"), {"model": Ruled, "items": ["0", "1"], "plan": [1, 1]}),
    ):
        with raises(ValueError, *parts):
            made(**arguments)
    with raises(TypeError, "returned a str"):
        made(lambda: "model")


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_arguments(ranks: Ranks) -> None:
    ranks.run(arguments_body)


def frozen() -> nn.Module:
    model = MODELS["gpt2"]()
    model.get_parameter("lm_head.weight").requires_grad_(False)
    return model


def alike_body(rank: int) -> None:
    with raises(ValueError, "seed differs", "rank 0", "rank 1"):
        made(seed=rank)
    with raises(ValueError, "plan differs"):
        made(plan=[1 + rank, 3 - rank])
    if rank == 0:
        with raises(ValueError, "4 blocks"):
            made(plan=[9, 9])
    else:
        with raises(ValueError, "rank 0 has a ValueError", "4 blocks"):
            made()
    example: Any = "rows" if rank == 0 else INPUTS
    error = TypeError if rank == 0 else ValueError
    with raises(error, "example is a str", *(() if rank == 0 else ("rank 0 has a TypeError",))):
        atoll.pipeline.Pipeline(MODELS["gpt2"], example, plan=[2, 2], micro_batches=2)
    with raises(ValueError, "example differs", "torch.int32", "rank 1"):
        atoll.pipeline.Pipeline(MODELS["gpt2"], INPUTS.int() if rank else INPUTS, plan=[2, 2], micro_batches=2)
    with raises(ValueError, "parameters differs", "rank 0", "rank 1"):
        made(frozen if rank == 0 else MODELS["gpt2"])
    with raises(ValueError, "model with data differs", "rank 0", "rank 1"):
        made(MODELS["gpt2"]() if rank == 0 else MODELS["gpt2"])
    pipe = made()
    with raises(ValueError, *(("2 micro-batches", "use 4 or 6") if rank else ("rank 1 has a ValueError",))):
        pipe.loader([INPUTS[0]] * 8, 5 if rank else 4)
    with raises(ValueError, "global_batch differs", "4 on rank 0", "6 on rank 1"):
        pipe.loader([INPUTS[0]] * 8, 6 if rank else 4)
    with raises(ValueError, *(("that the pipeline does not have",) if rank else ("rank 1 has a ValueError",))):
        pipe.save("nowhere", torch.optim.SGD([nn.Parameter(INPUTS.double())] if rank else pipe.parameters()))
    assert pipe.step(INPUTS, LABELS).isfinite(), "the ranks go on together"


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_arguments_of_one_rank(ranks: Ranks) -> None:
    ranks.run(alike_body)


def steps_body(rank: int) -> None:
    pipe = made()
    with raises(ValueError, "3 samples", "2 micro-batches", "use 2 or 4 samples", "micro_batches=3"):
        pipe.step(INPUTS[:3], LABELS[:3])
    with raises(ValueError, "0 samples", "use 2 samples"):
        pipe.step(INPUTS[:0], LABELS[:0])
    with raises(ValueError, "4 inputs and 2 labels"):
        pipe.step(INPUTS, LABELS[:2])
    with raises(ValueError, "'token_type_ids'", "attention_mask, position_ids"):
        pipe.step(INPUTS, LABELS, token_type_ids=INPUTS)
    with raises(ValueError, "attention_mask has 3 rows for 4 samples"):
        pipe.step(INPUTS, LABELS, attention_mask=torch.ones(3, INPUTS.shape[1]))
    with raises(ValueError, "norm_type=0"):
        pipe.clip_grad_norm_(1.0, 0)
    assert pipe.step(INPUTS, LABELS).isfinite()


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_steps(ranks: Ranks) -> None:
    ranks.run(steps_body)


def test_no_group() -> None:
    with pytest.raises(RuntimeError, match=r'init_process_group\("atoll"\) before'):
        made()


def own_items_body(rank: int) -> None:
    """A model of the user's: consecutive modules, and a loss that is a sum over samples."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs, labels = torch.randn(6, 3).double(), torch.randn(6, 2).double()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().sum()

    pipe = atoll.pipeline.Pipeline(
        model, (inputs, labels), items=["0", "1", "2", "3", "4"], plan=[3, 2], micro_batches=3, loss=loss
    )  # fmt: skip
    expected = loss(model(inputs), labels) / 6
    expected.backward()
    assert abs(pipe.step(inputs, labels).item() - expected.item()) < 1e-12
    for name, parameter in pipe.named_parameters():
        assert parameter is not model.get_parameter(name)
        torch.testing.assert_close(parameter.grad, model.get_parameter(name).grad)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_items_of_the_users(ranks: Ranks) -> None:
    ranks.run(own_items_body)
