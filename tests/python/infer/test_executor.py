# SPDX-License-Identifier: Apache-2.0
"""The C++ runner computes what the reference computes, and a side whose peer stops goes on alone. Divisions of whole
models: test_whole_models.py."""

import json
from collections.abc import Callable

import pytest
import torch

from atoll.infer import capture, run_graph
from atoll.infer.graph import to_text
from captured import CLOSE, Sides, assert_alike, exact_sides, single_sides
from export_models import CLASSES, EXAMPLES
from forking import fork
from own_error import Tensors, largest
from testing import testing


def check_divided(name: str, found: Tensors, division: str) -> None:
    whole = exact_sides(name).run()
    assert_alike(found, whole, CLOSE * largest(whole), CLASSES[name], division)


@pytest.mark.parametrize("sides", [single_sides, exact_sides], ids=["float32", "float64"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_one_side_is_the_reference_bit_for_bit(name: str, sides: Callable[[str], Sides]) -> None:
    case = sides(name)
    wanted = run_graph(case.bundle, case.inputs)
    found = case.run()
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    assert largest(wanted) > 0, "a comparison with nothing proves nothing"
    assert all(map(torch.equal, found, wanted))
    again = case.run()
    assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("name", ["resnet101", "unet", "vit"])
def test_a_side_whose_peer_stops_gets_the_answer_alone(name: str) -> None:
    case = exact_sides(name)
    division = json.loads(case.division(2, "random", seed=3))
    division["chunks"] = 4
    text = json.dumps(division)
    steps = case.model.steps(text)
    assert steps > 10
    for after in {*range(0, steps, 7), steps - 1, steps}:
        check_divided(name, case.model.cut_short(case.inputs, text, after), text)


def test_parts_of_one_row_and_of_none() -> None:
    """Each row of the image's first operators is computed once on either side."""
    case = exact_sides("resnet101")
    base = json.loads(case.division(2, "local"))
    rows = [end for _, end, _, _ in base["shares"]]
    for cut in (0, 1, 2):
        for low_is_robots in (False, True):
            shares = [[0, rows[0], 0, 0]]
            for count in rows[1:]:
                low, high = [0, min(cut, count)], [min(cut, count), count]
                shares.append([*low, *high] if low_is_robots else [*high, *low])
            division = json.dumps({**base, "shares": shares, "chunks": 5})
            check_divided("resnet101", case.divided(division), division)


def test_errors_are_those_of_torch() -> None:
    case = exact_sides("resnet101")
    with pytest.raises(ValueError, match="is not a device"):
        testing.InferModel(case.graph, case.bundle.weights, "toaster")
    with pytest.raises(torch.distributed.DistBackendError, match="there is no device"):
        testing.InferModel(case.graph, case.bundle.weights, "cuda:77")
    with pytest.raises(torch.distributed.DistNetworkError, match=r"the weight .* is missing"):
        testing.InferModel(case.graph, {})
    with pytest.raises(ValueError, match="0 inputs for a graph with 1"):
        case.model.run([])
    with pytest.raises(ValueError, match="input 0 must have the shape"):
        case.model.run([case.inputs[0].float()])
    with pytest.raises(ValueError, match="give one for each"):
        case.model.run_divided(case.inputs, json.dumps({"input": 0, "dim": 2, "chunks": 1, "shares": []}))


def test_an_error_of_a_call_names_its_node_and_module() -> None:
    """PyTorch's own error would not say which of a model's calls failed."""
    module = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.ReLU()).eval()
    places = torch.tensor([1, 4])
    bundle = capture(module, places)
    model = testing.InferModel(to_text(bundle.graph).decode(), bundle.weights)
    with pytest.raises(ValueError, match=r"node 0 \(aten::embedding in 0\): .*: call the module itself") as caught:
        model.run([places + 9])
    assert "\n" not in str(caught.value)


def changed(graph: str, place: int, **fields: object) -> str:
    parsed = json.loads(graph)
    parsed["nodes"][place].update(fields)
    return json.dumps(parsed)


def test_models_that_cannot_run_are_refused() -> None:
    case = exact_sides("resnet101")
    relu = next(i for i, node in enumerate(case.bundle.graph["nodes"]) if node["op"].startswith("aten::relu"))
    tensor = case.bundle.graph["nodes"][relu]["args"][0]
    with pytest.raises(torch.distributed.DistBackendError, match="there is no operator my::relu"):
        testing.InferModel(changed(case.graph, relu, op="my::relu"), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="changes its arguments"):
        testing.InferModel(changed(case.graph, relu, op="aten::relu_"), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="has 1 arguments, not 2"):
        testing.InferModel(changed(case.graph, relu, args=[tensor, 1]), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="argument self is a text"):
        testing.InferModel(changed(case.graph, relu, args=[{"text": "x"}]), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="argument self is nothing"):
        testing.InferModel(changed(case.graph, relu, args=[None]), case.bundle.weights)
    other = testing.InferModel(changed(case.graph, relu, op="aten::nonzero"), case.bundle.weights)
    with pytest.raises(ValueError, match=r"aten::nonzero in [0-9.]+\) returned int64"):
        other.run(case.inputs)


def test_a_number_in_a_tensors_place_promotes_nothing() -> None:
    graph = {
        "atoll_graph": 1,
        "tensors": [{"dtype": "float16", "shape": [3]}, {"dtype": "float16", "shape": [3]}],
        "inputs": [0],
        "weights": [],
        "nodes": [
            {"op": "aten::mul", "overload": "Tensor", "args": [{"tensor": 0}, 1.5], "outputs": [1], "list": False}
        ],
        "outputs": [{"tensor": 1}],
    }
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float16)
    (found,) = testing.InferModel(json.dumps(graph), {}).run([x])
    assert found.dtype == torch.float16
    assert torch.equal(found, x * 1.5)


def reuse_activations() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
    x = torch.randn(1, 3, 64, 64)
    bundle = capture(module, (x,))
    model = testing.InferModel(to_text(bundle.graph).decode(), bundle.weights)
    testing.infer_empty_arena()
    assert testing.infer_arena_bytes() == 0
    first = model.run([x])
    kept = testing.infer_arena_bytes()
    assert kept >= first[0].nbytes
    model.run([x])
    assert testing.infer_arena_bytes() == kept
    for size in (8192, 1 << 20):
        torch.empty(size).fill_(1)
    assert testing.infer_arena_bytes() == kept
    testing.infer_empty_arena()
    assert testing.infer_arena_bytes() == 0
    assert torch.equal(model.run([x])[0], first[0])


def test_activations_use_the_same_memory_again() -> None:
    """Only activations use it: tensors of the caller are allocated elsewhere in the meantime. The arena of the first
    module that needs one serves a process, so this is tried in a process of its own."""
    process = fork(reuse_activations)
    process.join()
    assert process.exitcode == 0
