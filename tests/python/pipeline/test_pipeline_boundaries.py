# SPDX-License-Identifier: Apache-2.0
"""Stages that pass on values without a gradient: masks, or numbers of tokens."""

import pytest
import torch
from torch import nn

import atoll
from atoll.pipeline.initial import without_data
from atoll.pipeline.items import in_turn
from atoll.pipeline.losses import Loss, samples
from atoll.pipeline.measuring import Example, Measuring
from atoll.pipeline.stage import Computing
from pipeline_models import Tokens, Weighs, square_sum
from support import Ranks, raises


def without_gradient_body(rank: int, dtype: torch.dtype, schedule: str, plan: list[int] | str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(Tokens(dtype).double(), Weighs(), nn.Tanh(), nn.Linear(2, 2).double())
    inputs, labels = torch.randn(8, 3).double(), torch.randn(8, 2).double()

    def made(schedule: str) -> "atoll.pipeline.Pipeline":
        return atoll.pipeline.Pipeline(
            model, (inputs, labels), items=["0", "1", "2", "3"], plan=plan, micro_batches=4, loss=square_sum,
            schedule=schedule,
        )  # fmt: skip

    pipe = made(schedule)
    expected = square_sum(model(inputs), labels) / 8
    expected.backward()
    for _ in range(2):
        assert abs(pipe.step(inputs, labels).item() - expected.item()) < 1e-12
        for name, parameter in pipe.named_parameters():
            alone = model.get_parameter(name).grad
            assert (parameter.grad is None) == (alone is None) == name.startswith("0."), name
            if alone is not None:
                torch.testing.assert_close(parameter.grad, alone)
    assert abs(pipe.evaluate(inputs, labels).item() - expected.item()) < 1e-12
    if plan == [1, 3]:
        with raises(ValueError, "'zero-bubble'", "item '0'", str(dtype), "cut elsewhere"):
            made("zero-bubble")


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.parametrize(
    ("schedule", "plan"), [("1f1b", [1, 3]), ("gpipe", [1, 3]), ("interleaved", [1, 1, 1, 1]), ("1f1b", "auto")]
)
def test_boundaries_without_gradients(ranks: Ranks, dtype: torch.dtype, schedule: str, plan: list[int] | str) -> None:
    ranks.run(without_gradient_body, dtype, schedule, plan)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_items_after_them_are_measured(dtype: torch.dtype) -> None:
    model = nn.Sequential(Tokens(dtype).double(), Weighs())
    whole, source = without_data(model)
    example = Example(torch.randn(4, 3).double(), torch.randn(4, 2).double())
    loss = Loss(square_sum, samples)
    cpu = torch.device("cpu")
    measuring = Measuring(whole, in_turn(["0", "1"]), example, loss, Computing(), cpu, 0, None, source)
    assert [[cost.samples for cost in item] for item in measuring.costs("never", [1, 4])] == [[1, 4]] * 2
