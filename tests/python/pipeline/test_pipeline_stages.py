# SPDX-License-Identifier: Apache-2.0
"""Items compute what the stock model computes, bit for bit; initial parameters do not depend on the cut."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from atoll.pipeline.families import parts_of
from atoll.pipeline.initial import check_rules, fill, initialise, without_data
from atoll.pipeline.items import Parts, check_parts, in_turn, ties_of
from atoll.pipeline.stage import Computing, StageModule, passes, prune
from pipeline_models import MODELS, SEED, VOCABULARY, batch

CPU = torch.device("cpu")


def stage(whole: nn.Module, parts: Parts, first: int, last: int) -> StageModule:
    return StageModule(whole, parts, range(first, last), Computing(), CPU, torch.float64)


def givens() -> list[dict[str, torch.Tensor]]:
    inputs, _ = batch(4)
    mask = torch.ones_like(inputs)
    mask[0, -4:] = 0
    mask[3, -1:] = 0
    packed = torch.cat([torch.arange(5), torch.arange(inputs.shape[1] - 5)])[None]
    return [{}, {"attention_mask": mask}, {"position_ids": packed}]


def stock_models() -> list[Any]:
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}
    return [
        pytest.param("llama", {}, id="llama"),
        pytest.param("llama", {"attn_implementation": "eager"}, id="llama-eager"),
        pytest.param("qwen2", {}, id="qwen2"),
        pytest.param("qwen2", windows, id="qwen2-windows"),
        pytest.param("gpt2", {}, id="gpt2"),
        pytest.param("gpt2", {"scale_attn_by_inverse_layer_idx": True}, id="gpt2-scaled"),
    ]


# Proves E-8.
@pytest.mark.parametrize(("name", "more"), stock_models())
def test_any_cut_gives_the_bits_of_the_stock_model(name: str, more: dict[str, Any]) -> None:
    model = initialise(MODELS[name](3, **more), SEED)
    parts = parts_of(model, None)
    inputs, _ = batch(4)
    for given in givens():
        expected = model(inputs, use_cache=False, **given).logits
        items = len(parts.items)
        assert torch.equal(stage(model, parts, 0, items)(inputs, **given), expected)
        for cut in range(1, items):
            hidden = stage(model, parts, 0, cut)(inputs, **given)
            assert torch.equal(stage(model, parts, cut, items)(hidden, **given), expected), cut


# Proves E-8.
@pytest.mark.parametrize(("name", "more"), stock_models())
def test_gradients_of_any_cut(name: str, more: dict[str, Any]) -> None:
    model = initialise(MODELS[name](3, **more), SEED)
    parts = parts_of(model, None)
    inputs, _ = batch(4)
    model(inputs).logits.square().sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for cut in range(1, len(parts.items)):
        model.zero_grad()
        hidden = stage(model, parts, 0, cut)(inputs)
        received = hidden.detach().requires_grad_()
        stage(model, parts, cut, len(parts.items))(received).square().sum().backward()
        assert received.grad is not None
        assert received.grad.is_contiguous()
        hidden.backward(received.grad)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_do_not_depend_on_the_cut(name: str) -> None:
    reference = initialise(MODELS[name](3), SEED)
    expected = reference.state_dict()
    numbers = torch.get_rng_state()
    items = len(parts_of(reference, None).items)
    for first, last in itertools.combinations(range(items + 1), 2):
        whole, source = without_data(lambda: MODELS[name](3))
        assert source is None
        parts = parts_of(whole, None)
        held = parts.modules(range(first, last))
        fill(whole, [*held, *parts.everywhere], None, SEED, None, CPU)
        prune(whole, [*held, *parts.everywhere])
        state = whole.state_dict()
        assert state
        for key, value in state.items():
            assert torch.equal(value, expected[key]), key
        for key, value in whole.named_buffers():
            assert torch.equal(value, reference.get_buffer(key)), key
    assert torch.equal(torch.get_rng_state(), numbers)
    other = initialise(MODELS[name](3), SEED + 1).state_dict()
    assert any(not torch.equal(other[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_one_weight_with_two_names(name: str) -> None:
    whole, _ = without_data(lambda: MODELS[name](2))
    (tied,) = ties_of(whole)
    assert tied[1] == "lm_head.weight"
    parts = parts_of(whole, None)
    fill(whole, parts.modules(range(len(parts.items))), None, SEED, None, CPU)
    assert whole.get_parameter(tied[0]) is whole.get_parameter(tied[1])
    prune(whole, ["lm_head"])
    assert torch.equal(whole.get_parameter("lm_head.weight"), initialise(MODELS[name](2), SEED).lm_head.weight)
    with pytest.raises(RuntimeError, match="is on another rank"):
        whole(torch.zeros(1, 3, dtype=torch.long))


def test_a_model_with_data_keeps_its_values() -> None:
    model = MODELS["gpt2"](2)
    before = copy.deepcopy(model.state_dict())
    whole, source = without_data(model)
    assert source is model
    assert all(parameter.is_meta for parameter in whole.parameters())
    fill(whole, ["transformer.h.1"], source, SEED, None, CPU)
    mine, theirs = whole.get_parameter("transformer.h.1.ln_1.weight"), model.transformer.h[1].ln_1.weight
    assert torch.equal(mine, theirs)
    assert mine is not theirs
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_gpt2_draws_projections_smaller() -> None:
    """A module's rules about modules inside it are applied last."""
    model = initialise(MODELS["gpt2"](8), SEED)
    inner, outer = model.transformer.h[0].mlp.c_fc.weight.std(), model.transformer.h[0].mlp.c_proj.weight.std()
    assert outer < 0.5 * inner


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def test_modules_in_turn() -> None:
    model = initialise(network(), SEED)
    parts = in_turn(["0", "1", "2", "3", "4"])
    check_parts(model, parts)
    model.eval()
    inputs = torch.randn(6, 3, dtype=torch.float64)
    hidden = stage(model, parts, 0, 2)(inputs)
    assert torch.equal(stage(model, parts, 2, 5)(hidden), model(inputs))
    whole, _ = without_data(network)
    shapes = [tuple(value.shape) for value in passes(whole, parts, inputs)]
    assert shapes == [(6, 5), (6, 5), (6, 4), (6, 4)]


def test_stages_of_frozen_parameters_send_something_to_differentiate() -> None:
    model = initialise(network(), SEED)
    model[0].requires_grad_(False)
    parts = in_turn(["0", "1", "2", "3", "4"])
    assert stage(model, parts, 0, 2)(torch.ones(2, 3, dtype=torch.float64)).requires_grad
    with torch.no_grad():
        assert not stage(model, parts, 0, 2)(torch.ones(2, 3, dtype=torch.float64)).requires_grad


class Bare(nn.Module):
    """A module with parameters, but without a way to initialise them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.zeros(3))


def test_parameters_without_initialisation() -> None:
    with pytest.raises(ValueError, match=r"inner \(Module\) has no rule to initialise it.*initial="):
        initialise(Bare(), SEED)

    def ones(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.fill_(1)

    assert torch.equal(initialise(Bare(), SEED, ones).inner.weight, torch.ones(3))


class Scaled(nn.Module):
    """A module with an initialisation rule for the modules inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.inner.weight, std=1e-3)


def scaled() -> nn.Module:
    return nn.Sequential(Scaled(), nn.Sequential(Scaled(), nn.Linear(3, 2)))


@pytest.mark.parametrize("items", [["0", "1"], ["0", "1.0", "1.1"]])
def test_rules_inside_items_are_those_of_the_whole_model(items: list[str]) -> None:
    expected = initialise(scaled(), SEED).state_dict()
    assert 0 < expected["1.0.inner.weight"].abs().max() < 0.01
    for item in items:
        whole, _ = without_data(scaled)
        check_rules(whole, items)
        fill(whole, [item], None, SEED, None, CPU)
        for name, value in whole.get_submodule(item).state_dict().items():
            assert torch.equal(value, expected[f"{item}.{name}"]), f"{item}.{name}"


def test_rules_that_several_items_would_need() -> None:
    with pytest.raises(ValueError, match=r"1.0 \(Scaled\) has reset_parameters\(\) .*initial="):
        check_rules(scaled(), ["0", "1.0.inner", "1.1"])


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (["0", "1", "2", "4"], "3.weight"),
        (["0", "1", "2", "3", "5"], "no module '5'"),
        ([], "at least one"),
    ],
)
def test_items_that_are_not_the_model(items: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_parts(network(), in_turn(items))


def test_unknown_models() -> None:
    with pytest.raises(ValueError, match=r"Sequential is not a model .*GPT2LMHeadModel.*items="):
        parts_of(network(), None)


def test_views_of_one_memory() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    with pytest.raises(ValueError, match=r"'1.weight' and '0.weight' are two views"):
        ties_of(model)


def test_the_vocabulary_is_in_use() -> None:
    inputs, labels = batch(8)
    assert int(inputs.max()) == VOCABULARY - 1
    assert (labels == -100).any(1).sum() > 3
