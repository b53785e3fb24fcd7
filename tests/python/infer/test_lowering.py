# SPDX-License-Identifier: Apache-2.0
"""Operators that no server lists are replaced by those that PyTorch computes them with, and what depends only on
weights is computed at capture. Servers then admit the graph, which gives the module's values as a whole and in
parts."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from atoll import _C
from atoll.infer import Bundle, ExportError, capture, run_graph
from atoll.infer.folding import SMALL_BYTES
from atoll.infer.graph import to_text
from captured import CLOSE, Sides
from own_error import largest
from testing import testing

X = torch.linspace(-2, 2, 60, dtype=torch.float64).reshape(2, 5, 6)
REFUSED = torch.distributed.DistNetworkError


class Calls(nn.Module):
    """Calls a function in its forward; `held` become its buffers."""

    def __init__(self, function: Callable[..., Any], **held: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in held.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def operators(bundle: Bundle) -> list[str]:
    return [node["op"].removeprefix("aten::") for node in bundle.graph["nodes"]]


def check(module: nn.Module, x: torch.Tensor = X) -> Bundle:
    """Checks that a server admits the graph, and that it gives the module's bits as a whole and its values in parts."""
    module.eval()
    bundle = capture(module, x)
    _C.infer_admit(to_text(bundle.graph).decode())
    sides = Sides.of(bundle, [x])
    with torch.no_grad():
        wanted = module(x)
    (whole,) = sides.run()
    assert torch.equal(whole, wanted)
    assert torch.equal(run_graph(bundle, [x])[0], wanted)
    for dim in range(x.dim()):
        for seed in range(3):
            (found,) = sides.divided(sides.division(dim, "random", seed=seed))
            assert (found - wanted).abs().max() <= CLOSE * max(1.0, largest([wanted]))
    return bundle


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: x.float().type_as(x) * 2,
        lambda _, x: torch.outer(x[0, 0], x[1, 1]),
        lambda _, x: torch.mv(x[0], x[1, 0]) + torch.dot(x[0, 0], x[1, 1]),
        lambda _, x: functional.one_hot((x > 0).long() + 1, 4) * x.unsqueeze(-1),
        lambda _, x: x.new_empty(2, 3).fill_(1.5) + x.sum(),
        lambda _, x: torch.empty_like(x).copy_(x) + torch.empty(6, dtype=x.dtype).fill_(2),
        lambda _, x: torch.stack([torch.rot90(x, k, [1, -1]).sum(2) if k % 2 else x.sum(1) for k in (1, 3)]).sum(0),
        lambda _, x: torch.cat([torch.rot90(x, k, [0, 2]).flatten() for k in range(-1, 4)]),
        lambda _, x: torch.einsum("...ij,...kj->...ik", x, x),
        lambda _, x: torch.einsum("bij,bkj", x, x),
        lambda _, x: torch.einsum("bij,bkj,bik->b", x, x, x.new_ones(2, 5, 5)),
        lambda _, x: torch.tile(x, (2, 1, 1)) + torch.swapaxes(x, 0, 1).reshape(5, 2, 6).sum(0).sum(0),
        lambda _, x: functional.normalize(x, dim=1) + torch.linalg.norm(x, dim=2, keepdim=True),
        lambda _, x: torch.take_along_dim(x, x.argsort(1), 1) + functional.cosine_similarity(x, x + 1, 2).unsqueeze(2),
        lambda _, x: torch.softmax(x, True) if False else functional.softplus(x, beta=True),
    ],
)
def test_composites_are_written_out(function: Callable[..., Any]) -> None:
    check(Calls(function))


CELLS = [nn.LSTMCell, nn.GRUCell, nn.RNNCell, partial(nn.RNNCell, nonlinearity="relu")]


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_recurrent_layers(cell: Callable[[int, int], nn.Module]) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell(6, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = self.cell(x[:, 0])
            for step in range(1, x.shape[1]):
                state = self.cell(x[:, step], state)
            return state if isinstance(state, torch.Tensor) else torch.cat(state, 1)

    torch.manual_seed(1)
    bundle = check(Steps().double())
    assert not {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}.intersection(operators(bundle))


def test_an_einsum_that_servers_list_stays() -> None:
    assert operators(check(Calls(lambda _, x: torch.einsum("bij,bkj->bik", x, x)))) == ["einsum"]


# Operators that depend on memory layout.


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: (x + 1).transpose(1, 2).as_strided((3, 4, 5), (5, 2, 7), 1),
        lambda _, x: (x + 1).permute(2, 0, 1).as_strided((60,), (1,)),
        lambda _, x: (x + 1).as_strided((4, 3, 6), (12, 0, 1)),
        lambda _, x: (x + 1)[1].as_strided((5, 6), (6, 1), 30) + 1,
        lambda _, x: x.t() if x.dim() == 2 else (x + 1).view(torch.int64).transpose(1, 2).abs().double(),
        lambda _, x: (x + 1).transpose(1, 2).contiguous().view(torch.float32).double(),
    ],
)
def test_what_sees_memory_sees_the_examples(function: Callable[..., Any]) -> None:
    module = Calls(function).eval()
    bundle = capture(module, X)
    assert "as_strided" not in operators(bundle)
    (wanted,) = [module(X)]
    sides = Sides.of(bundle, [X])
    assert torch.equal(sides.run()[0], wanted)
    for dim in range(3):
        for seed in range(4):
            (found,) = sides.divided(sides.division(dim, "random", seed=seed))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _, x: (x + 1)[:, :3].as_strided((2, 2), (6, 1)), "with gaps between its elements"),
        (lambda _, x: (x + 1).expand(2, 5, 6)[0].as_strided((6, 6), (6, 1)), "outside of its tensor"),
        (lambda _, x: torch.as_strided_scatter(x + 1, x[0, 0], (6,), (1,)), "a tensor's memory layout"),
    ],
)
def test_what_cannot_be_seen_by_shape_is_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ExportError, match=words) as caught:
        capture(Calls(function).eval(), X)
    assert "test_lowering.py" in str(caught.value)


def test_a_graph_that_sees_memory_is_refused_by_the_runner() -> None:
    node = {"op": "aten::as_strided", "overload": "", "outputs": [1], "list": False, "module": "head",
            "args": [{"tensor": 0}, {"ints": [3]}, {"ints": [1]}, None]}  # fmt: skip
    tensors = [{"dtype": "float32", "shape": shape} for shape in ([4], [3])]
    graph = {"atoll_graph": 1, "tensors": tensors, "inputs": [0], "weights": [], "nodes": [node],
             "outputs": [{"tensor": 1}]}  # fmt: skip
    with pytest.raises(REFUSED, match=r"node 0 \(aten::as_strided in head\) depends on its operand's memory layout"):
        testing.InferModel(json.dumps(graph), {})


# Values that depend only on weights.


def test_weight_norm_becomes_a_weight() -> None:
    torch.manual_seed(2)
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(5, 4, 3, padding=1).double(), dim=2)
    bundle = check(layer)
    assert operators(bundle) == ["conv1d"]
    (name,) = [name for name, sources in bundle.sources.items() if len(sources) == 2]
    assert torch.equal(bundle.weights[name], layer.weight)
    assert bundle.sources[name] == (
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    )
    assert set(bundle.sources) == set(bundle.weights)


def test_standardized_weights_become_weights() -> None:
    """Standardises weights as BiT and NFNet do."""

    class Standardized(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = self.weight.reshape(1, self.out_channels, -1)
            weight = functional.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6)
            return functional.conv2d(x, weight.reshape_as(self.weight), self.bias)

    torch.manual_seed(3)
    net = nn.Sequential(Standardized(3, 4, 3), nn.ReLU(), Standardized(4, 2, 3)).double()
    bundle = check(net, torch.randn(1, 3, 9, 8, dtype=torch.float64))
    assert "_native_batch_norm_legit" not in operators(bundle)


def test_a_layer_that_is_called_twice_has_one_weight() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6).double())
    bundle = check(nn.Sequential(layer, nn.Tanh(), layer))
    assert len(bundle.weights) == 2  # with the bias


def test_views_and_large_results_stay_in_the_graph() -> None:
    """A view costs nothing in the graph, and a small weight must not become a large file."""
    weight = torch.linspace(1, 2, 6, dtype=torch.float64)
    bundle = check(Calls(lambda self, x: x @ self.weight.view(6, 1).transpose(0, 1).expand(6, 6), weight=weight))
    assert list(bundle.weights) == ["weight"]
    assert bundle.weights["weight"].data_ptr() == weight.data_ptr()

    def spread(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.exp().expand(4096, 6) + 1).sum(0) + (
            self.weight.view(6, 1, 1) * torch.ones(200, 200)
        ).sum() * x

    bundle = check(Calls(spread, weight=weight))
    held = sum(tensor.nbytes for tensor in bundle.weights.values())
    assert held <= weight.nbytes + 4 * SMALL_BYTES


def test_numbers_that_are_small_and_listed_by_no_server_become_weights() -> None:
    def masked(_: Any, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.tril_indices(5, 5)
        return x * (rows * columns).sum()

    assert operators(check(Calls(masked))) == ["mul"]


def test_random_numbers_are_refused_where_they_depend_on_weights_alone() -> None:
    weight = torch.ones(6, dtype=torch.float64)
    with pytest.raises(ExportError, match="random numbers"):
        capture(Calls(lambda self, x: x * torch.bernoulli(self.weight / 2), weight=weight).eval(), X)


def test_folded_values_are_not_those_of_other_numbers() -> None:
    """1 and True, and 0.0 and -0.0, are equal in Python but must be distinguished here."""
    weight = torch.linspace(1, 2, 6, dtype=torch.float64)

    def both(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, (torch.full_like(self.weight, -0.0) / self.weight).expand(2, 1, 6),
                          (torch.full_like(self.weight, 0.0) / self.weight).expand(2, 1, 6)], 1)  # fmt: skip

    module = Calls(both, weight=weight).eval()
    (found,) = run_graph(capture(module, X), [X])
    assert torch.equal(found.signbit(), module(X).signbit())
