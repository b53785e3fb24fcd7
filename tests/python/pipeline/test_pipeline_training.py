# SPDX-License-Identifier: Apache-2.0
"""Pipelines give the training of one process, whatever the schedule and the cuts."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import atoll
from atoll.pipeline.plan import Pipe, Plan, Stage
from atoll.pipeline.running import SHAPES
from pipeline_models import (
    MODELS,
    SEED,
    alone,
    batch,
    check_close,
    check_same,
    mean_loss,
    my_rows,
    train_alone,
    train_together,
)
from support import Ranks, crossed, later

STEPS = 3


def train_and_compare(
    rank: int, model: str, blocks: int, schedule: str, plan: list[int] | str, micro_batches: int, samples: int,
    recompute: bool = False,
) -> None:  # fmt: skip
    make = functools.partial(MODELS[model], blocks)
    pipe = atoll.pipeline.Pipeline(
        make, batch(samples)[0], micro_batches=micro_batches, plan=plan, schedule=schedule, seed=SEED,
        recompute=recompute,
    )  # fmt: skip
    reference = alone(make)
    check_same(pipe, reference, 0.0)
    expected, norms = train_alone(reference, STEPS, samples, clip=0.5)
    own, own_norms = train_together(pipe, STEPS, samples, clip=0.5)
    check_close(own, expected)
    check_close(own_norms, norms)
    check_same(pipe, reference)
    inputs, labels = batch(samples, 50)
    with torch.no_grad():
        check_close([pipe.evaluate(inputs, labels).item()], [mean_loss(reference, inputs, labels).item()])


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize(
    ("model", "schedule", "plan", "micro_batches"),
    [
        ("llama", "1f1b", [1, 3], 4),
        later("llama", "gpipe", "equal", 3),
        later("gpt2", "1f1b", [0, 4], 2),  # the embedding alone
        ("gpt2", "gpipe", [6, 1], 1),  # the head alone
        later("qwen2", "1f1b", [4, 0], 5),
        ("llama", "interleaved", [1, 1, 1, 1], 4),
        later("gpt2", "interleaved", [1, 2, 3, 1], 2),
        ("llama", "zero-bubble", [3, 1], 4),
        later("gpt2", "zero-bubble", [0, 2, 1, 1], 2),
        ("qwen2", "zbv", [1, 1, 2, 0], 4),
        later("llama", "zbv", [2, 2, 2, 1], 2),
    ],
)
def test_two_ranks(ranks: Ranks, model: str, schedule: str, plan: list[int] | str, micro_batches: int) -> None:
    ranks.run(train_and_compare, model, 4, schedule, plan, micro_batches, 2 * micro_batches)


@pytest.mark.parametrize("ranks", ["ABA"], indirect=True)
@pytest.mark.parametrize(
    ("model", "schedule", "plan", "micro_batches"),
    [
        ("llama", "1f1b", [1, 2, 1], 3),
        ("gpt2", "gpipe", [3, 1, 0], 2),
        ("qwen2", "1f1b", [1, 5, 1], 5),  # items: the embedding alone and the head alone
        ("gpt2", "interleaved", [1, 1, 1, 1, 2, 1], 3),
        ("llama", "zero-bubble", [2, 1, 1], 6),
        ("gpt2", "zbv", [1, 1, 1, 1, 2, 1], 5),
    ],
)
def test_three_ranks(ranks: Ranks, model: str, schedule: str, plan: list[int], micro_batches: int) -> None:
    ranks.run(train_and_compare, model, 4, schedule, plan, micro_batches, micro_batches)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize(
    ("model", "schedule", "plan", "micro_batches"),
    [
        ("llama", "1f1b", [1, 1, 2, 2], 4),
        ("gpt2", "gpipe", [0, 3, 2, 1], 2),
        ("gpt2", "interleaved", [1, 1, 1, 1, 1, 1, 1, 2], 8),
        ("llama", "zero-bubble", [2, 1, 1, 2], 4),
        ("qwen2", "zbv", [1, 1, 1, 1, 1, 1, 2, 1], 8),
    ],
)
def test_four_ranks(ranks: Ranks, model: str, schedule: str, plan: list[int], micro_batches: int) -> None:
    ranks.run(train_and_compare, model, 6, schedule, plan, micro_batches, micro_batches)


@pytest.mark.parametrize("ranks", ["ab", "Ab"], indirect=True)
def test_on_unlike_devices(ranks: Ranks) -> None:
    ranks.run(on_device_body)


def on_device_body(rank: int) -> None:
    from support import device

    pipe = atoll.pipeline.Pipeline(
        MODELS["gpt2"], batch(4)[0], micro_batches=2, plan=[1, 3], seed=SEED, device=device()
    )  # fmt: skip
    reference = alone(MODELS["gpt2"])
    expected, norms = train_alone(reference, STEPS, 4, clip=0.5)
    own, own_norms = train_together(pipe, STEPS, 4, clip=0.5)
    check_close(own, expected)
    check_close(own_norms, norms)
    check_same(pipe, reference)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_blocks_that_are_computed_twice(ranks: Ranks, schedule: str) -> None:
    ranks.run(train_and_compare, "llama", 4, schedule, [2, 2], 2, 4, True)
    ranks.run(count_forwards, schedule)


def count_forwards(rank: int, schedule: str) -> None:
    """Counts the forward passes of a block, with recomputation on the second stage only."""
    calls = []
    pipe = atoll.pipeline.Pipeline(
        MODELS["llama"], batch(4)[0], micro_batches=2, plan=[2, 2], schedule=schedule, recompute=[False, True]
    )  # fmt: skip
    block = pipe.model.get_submodule(f"model.layers.{2 * rank}.mlp")
    block.register_forward_pre_hook(lambda *_: calls.append(None))
    pipe.step(*batch(4))
    assert len(calls) == (4 if rank else 2)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_copies_of_a_shared_weight_stay_equal(ranks: Ranks) -> None:
    ranks.run(shared_weight_body)


def shared_weight_body(rank: int) -> None:
    pipe = atoll.pipeline.Pipeline(MODELS["gpt2"], batch(4)[0], micro_batches=2, plan=[2, 2], seed=SEED)
    train_together(pipe, STEPS, 4)
    shared = dict(pipe.named_parameters())["transformer.wte.weight"].detach()
    copies = [torch.empty_like(shared) for _ in range(2)]
    dist.all_gather(copies, shared)
    assert torch.equal(*copies)
    before = alone(MODELS["gpt2"]).get_parameter("transformer.wte.weight")
    assert not torch.equal(shared, before)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize(("shares", "model"), crossed([2, [3, 2]], ["llama", "gpt2"]))
def test_pipelines_side_by_side(ranks: Ranks, model: str, shares: int | list[int]) -> None:
    ranks.run(side_by_side_body, model, shares)


def side_by_side_body(rank: int, model: str, shares: int | list[int]) -> None:
    total = 4 if isinstance(shares, int) else sum(shares)
    pipe = atoll.pipeline.Pipeline(
        MODELS[model], batch(2 * total)[0], micro_batches=shares, plan=[1, 3], replicas=2, seed=SEED
    )  # fmt: skip
    assert pipe.place == rank % 2
    compare_pipelines(pipe, model, 2 * total)


def compare_pipelines(pipe: "atoll.pipeline.Pipeline", model: str, samples: int) -> None:
    reference = alone(MODELS[model])
    expected, norms = train_alone(reference, STEPS, samples, clip=0.5)
    own, own_norms = train_together(pipe, STEPS, samples, clip=0.5)
    check_close(own, expected)
    check_close(own_norms, norms)
    told: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own_norms)
    assert all(each == told[0] for each in told), "copies are made smaller by the same bits"
    check_same(pipe, reference)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
def test_pipelines_with_cuts_and_orders_of_their_own(ranks: Ranks) -> None:
    ranks.run(own_cuts_body)


def own_cuts_body(rank: int) -> None:
    first = Pipe((Stage(0, 2, 3), Stage(2, 7, 0)), 2)
    second = Pipe((Stage(0, 5, 1), Stage(5, 7, 2, recompute=True)), 3)
    plan = Plan((first, second))
    pipe = atoll.pipeline.Pipeline(MODELS["gpt2"], batch(10)[0], plan=plan, seed=SEED)
    assert pipe.place == (0 if rank in (0, 3) else 1)
    compare_pipelines(pipe, "gpt2", 10)
    assert Plan.from_json(pipe.plan.to_json()) == plan
    assert replace(plan, answer={"seconds": 1}) == plan


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_masks_and_positions(ranks: Ranks, schedule: str) -> None:
    ranks.run(masks_body, schedule)


def masks_body(rank: int, schedule: str) -> None:
    plan = "equal" if schedule == "interleaved" else [3, 1]
    pipe = atoll.pipeline.Pipeline(
        MODELS["llama"], batch(4)[0], micro_batches=2, plan=plan, schedule=schedule, seed=SEED
    )  # fmt: skip
    reference = alone(MODELS["llama"])
    inputs, labels = batch(4)
    mask = torch.ones_like(inputs)
    mask[1, -3:] = 0
    mask[2, -5:] = 0
    packed = torch.cat([torch.arange(4), torch.arange(inputs.shape[1] - 4)])[None]
    for given in ({"attention_mask": mask}, {"position_ids": packed}, {"position_ids": packed.expand(4, -1)}):
        expected = mean_loss(reference, inputs, labels, **given)
        check_close([pipe.step(inputs, labels, **given).item()], [expected.item()])
        assert abs(pipe.step(inputs, labels).item() - expected.item()) > 1e-6


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_batches_of_other_shapes(ranks: Ranks) -> None:
    ranks.run(shapes_body)


def shapes_body(rank: int) -> None:
    pipe = atoll.pipeline.Pipeline(MODELS["gpt2"], batch(4)[0], micro_batches=2, plan=[2, 2], seed=SEED)
    reference = alone(MODELS["gpt2"])
    for samples, tokens in ((4, 9), (6, 9), (4, 5), (4, 9)):
        inputs, labels = (each[:, :tokens] for each in batch(samples))
        check_close([pipe.step(inputs, labels).item()], [mean_loss(reference, inputs, labels).item()])
    for tokens in (*range(2, 22), 3):
        inputs = torch.arange(4 * tokens).reshape(4, tokens) % 29
        check_close([pipe.step(inputs, inputs).item()], [mean_loss(reference, inputs, inputs).item()])
    assert len(pipe._runner._made) == SHAPES, "the oldest are released"


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_bfloat16_where_pytorch_can(ranks: Ranks) -> None:
    ranks.run(autocast_body)


def autocast_body(rank: int) -> None:
    def make() -> torch.nn.Module:
        return MODELS["llama"]().float()

    pipe = atoll.pipeline.Pipeline(
        make, batch(4)[0], micro_batches=2, plan=[1, 3], seed=SEED, autocast=torch.bfloat16
    )  # fmt: skip
    loss = pipe.step(*batch(4))
    reference = alone(make)
    with torch.autocast("cpu", torch.bfloat16):
        expected = mean_loss(reference, *batch(4))
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-6
    assert abs(loss.item() - mean_loss(reference, *batch(4)).item()) > 1e-6, "bfloat16 rounds"
    gradients = {name: each.grad for name, each in reference.named_parameters()}
    for name, parameter in pipe.named_parameters():
        assert parameter.dtype == torch.float32
        largest = gradients[name].abs().max()
        assert (parameter.grad - gradients[name]).abs().max() <= 0.05 * largest, name


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_a_step_without_labels_that_count(ranks: Ranks) -> None:
    ranks.run(no_labels_body)


def no_labels_body(rank: int) -> None:
    pipe = atoll.pipeline.Pipeline(MODELS["llama"], batch(4)[0], micro_batches=2, plan=[2, 2], seed=SEED)
    inputs, labels = batch(4)
    assert pipe.step(inputs, torch.full_like(labels, -100)).isnan()
    assert all(float(parameter.grad.abs().sum()) == 0 for parameter in pipe.parameters())


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_infinity_norm(ranks: Ranks) -> None:
    ranks.run(norm_body)


def norm_body(rank: int) -> None:
    pipe = atoll.pipeline.Pipeline(MODELS["gpt2"], batch(4)[0], micro_batches=2, plan=[2, 2], seed=SEED)
    reference = alone(MODELS["gpt2"])
    for norm_type in (1.0, 3.0, float("inf")):
        reference.zero_grad()
        mean_loss(reference, *batch(4)).backward()
        expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1e-3, norm_type)
        pipe.step(*my_rows(pipe, *batch(4)))
        check_close([pipe.clip_grad_norm_(1e-3, norm_type).item()], [expected.item()])
        gradients = {name: each.grad for name, each in reference.named_parameters()}
        for name, parameter in pipe.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-15)


class Sometimes(torch.nn.Module):
    """Uses its second layer only for large inputs, and its third one never."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](value)
        return first + self.layers[1](value) if not value.is_meta and value.max() > 5 else first


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_a_parameter_that_one_pipeline_uses(ranks: Ranks) -> None:
    ranks.run(sometimes_body)


def sometimes_body(rank: int) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().sum()

    torch.manual_seed(5)
    model = torch.nn.Sequential(Sometimes()).double()
    inputs, labels = torch.rand(4, 3).double(), torch.rand(4, 3).double()
    inputs[3] += 8
    pipe = atoll.pipeline.Pipeline(
        model, (inputs, labels), items=["0"], plan=[1], replicas=2, micro_batches=1, loss=loss, schedule="gpipe"
    )  # fmt: skip
    total = sum((loss(model(inputs[part]), labels[part]) for part in (slice(0, 2), slice(2, 4))), start=torch.zeros(()))
    (total / 4).backward()
    assert abs(pipe.step(*my_rows(pipe, inputs, labels)).item() - total.item() / 4) < 1e-12
    for name, parameter in pipe.named_parameters():
        expected = model.get_parameter(name).grad
        assert (parameter.grad is None) == (expected is None) == name.startswith("0.layers.2")
        if expected is not None:
            torch.testing.assert_close(parameter.grad, expected)
