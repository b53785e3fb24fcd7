# SPDX-License-Identifier: Apache-2.0
"""Captured networks compute what the module computes, before and after they are saved and loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from atoll.infer import Bundle, ExportError, Session, capture, run_graph
from captured import captured
from export_models import EXAMPLES, TRANSFORMERS, example

CLOSE = 1e-6  # of the largest value: results of some kernels depend on the address of a tensor


def check_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if wanted.is_floating_point():
        assert wanted.abs().max() > 0, "a comparison with nothing proves nothing"
        assert (found - wanted).abs().max() <= CLOSE * wanted.abs().max()
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_graph_computes_what_the_module_computes(name: str, tmp_path: Path) -> None:
    one = captured(name)
    with torch.no_grad():
        wanted = one.module(*one.args, **one.kwargs)
    classes = [type(wanted)] if name in TRANSFORMERS else []
    loaded = Bundle.load(one.bundle.save(tmp_path), classes)
    assert loaded.hash == one.bundle.hash
    for each in (one.bundle, loaded):
        tensors = each.check_inputs(one.args, one.kwargs)
        found = each.output.build(run_graph(each, tensors))
        assert type(found) is type(wanted)
        leaves, spec = pytree.tree_flatten(found)
        wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
        assert spec == wanted_spec
        for leaf, other in zip(leaves, wanted_leaves, strict=True):
            check_close(leaf, other)


@pytest.mark.parametrize("name", ["recurrent", "encoder"])
def test_the_module_still_works(name: str) -> None:
    module, args, _ = example(name)
    with torch.no_grad():
        before = pytree.tree_leaves(module(*args))
        capture(module, args)
        after = pytree.tree_leaves(module(*args))
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", ["resnet101", "vgg19", "mobilenet", "vit"])
def test_other_values_of_the_same_shape(name: str) -> None:
    """The graph does not depend on the example's values."""
    one = captured(name)
    other = torch.randn_like(one.args[0]) * 2 + 1
    with torch.no_grad():
        wanted = one.module(other)
    (found,) = run_graph(one.bundle, [other])
    check_close(found, wanted)


def test_graphs_are_what_the_runner_expects() -> None:
    """Batch norm is the checked operator, there is no dropout and no metadata, every argument is given, and no path
    of a source file."""
    bundle = captured("vgg19_bn").bundle
    graph = bundle.graph
    operators = [node["op"] for node in graph["nodes"]]
    assert "aten::batch_norm" in operators
    left_out = {"aten::clone", "aten::dropout", "aten::alias", "aten::_native_batch_norm_legit_no_training"}
    assert left_out.intersection(operators) == set()
    convolution = graph["nodes"][operators.index("aten::conv2d")]
    pair = {"ints": [1, 1]}
    assert convolution["overload"] == ""
    assert convolution["args"][3:] == [pair, pair, pair, 1]
    assert convolution["args"][0] == {"tensor": graph["inputs"][0]}
    pool = graph["nodes"][operators.index("aten::max_pool2d")]
    two, none = {"ints": [2, 2]}, {"ints": [0, 0]}
    assert pool["args"][1:] == [two, two, none, pair, False]
    first = captured("resnet101").bundle.graph["nodes"][0]
    assert (first["op"], first["args"][2]) == ("aten::conv2d", None)
    text = json.dumps(graph)
    assert ".py" not in text
    assert "num_batches_tracked" not in text
    assert not any(name.startswith("module.") for name in bundle.weights)


def test_tied_weights_are_stored_once() -> None:
    bundle = captured("llama").bundle
    shapes = [tuple(tensor.shape) for tensor in bundle.weights.values()]
    assert shapes.count((50, 24)) == 1
    place = next(weight["tensor"] for weight in bundle.graph["weights"]
                 if bundle.graph["tensors"][weight["tensor"]]["shape"] == [50, 24])  # fmt: skip
    users = [node["op"] for node in bundle.graph["nodes"] if {"tensor": place} in node["args"]]
    assert users == ["aten::embedding", "aten::linear"]


def test_weights_come_in_the_order_of_their_use() -> None:
    graph: dict[str, Any] = captured("resnet101").bundle.graph
    order = [argument["tensor"] for node in graph["nodes"] for argument in node["args"]
             if isinstance(argument, dict) and "tensor" in argument]  # fmt: skip
    firsts = [order.index(weight["tensor"]) for weight in graph["weights"]]
    assert len(firsts) > 10
    assert firsts == sorted(firsts)


def test_wrappers_and_exported_modules_are_what_they_hold() -> None:
    net = nn.Sequential(nn.Conv1d(3, 2, 1), nn.BatchNorm1d(2), nn.Dropout(0.5)).eval()
    x = torch.rand(2, 3, 4)
    program = torch.export.export(net, (x,))
    for module in (nn.DataParallel(net), nn.DataParallel(net).eval(), program.module()):
        (found,) = run_graph(capture(module, x), [x])
        check_close(found, net(x).detach())
    for make in (capture, Session):
        with pytest.raises(ExportError, match=r"is an ExportedProgram: pass its module\(\)"):
            make(program, x)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=r"forward changes 1\.running_mean in place"):
        capture(torch.export.export(net.train(), (x,)).module(), x)
