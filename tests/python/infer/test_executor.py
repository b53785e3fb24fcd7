# SPDX-License-Identifier: Apache-2.0
"""The runner in C++ computes what the reference computes, on one side and divided between two in any way."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from atoll import _C
from atoll.infer import capture, run_graph
from atoll.infer.bundle import Bundle
from atoll.infer.graph import to_text
from export_models import EXAMPLES, example

TRANSFORMERS = ("bert", "llama")
# Along which dimensions of their first input they are divided: rows and columns, voxels, tokens or the batch.
DIMS = {"occupancy": (2, 4), "recurrent": (0, 1), "encoder": (1, 0), "bert": (1, 0), "llama": (1,), "vit": (2, 0)}
POLICIES = ("local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "hybrid-parallel", "random", "auto")
# These compute parts in float32 whatever they are given.
PARTLY_FLOAT32 = ("occupancy", "llama")
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Ready:
    bundle: Bundle
    graph: str
    inputs: list[torch.Tensor]
    model: _C.InferModel

    def division(self, dim: int, policy: str, **options: object) -> str:
        return _C.plan_division(self.graph, self.bundle.graph["inputs"][0], dim, policy, json.dumps(options))


@cache
def ready(name: str, dtype: torch.dtype = torch.float64) -> Ready:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    module, args, kwargs = example(name)
    if name != "occupancy":
        module, args = module.to(dtype), tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    bundle = capture(module, args, kwargs)
    graph = to_text(bundle.graph).decode()
    return Ready(bundle, graph, bundle.check_inputs(args, kwargs), _C.InferModel(graph, bundle.weights))


def largest(tensors: Tensors) -> float:
    return max((t.double().abs().max().item() for t in tensors if t.is_floating_point() and t.numel()), default=0.0)


def deviation(found: Tensors, wanted: Tensors) -> float:
    """The largest one; what is not a float is equal, and all has the same dtypes and shapes."""
    assert len(found) == len(wanted)
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        if other.is_floating_point() and other.numel():
            worst = max(worst, (one.double() - other.double()).abs().max().item())
        elif not other.is_floating_point():
            assert torch.equal(one, other)
    return worst


def check_divided(name: str, division: str, found: Tensors | None = None) -> None:
    case = ready(name)
    whole = case.model.run(case.inputs)
    divided = found if found is not None else case.model.run_divided(case.inputs, division)
    assert [each.dtype for each in divided] == [each.dtype for each in whole]
    share = 1e-6 if name in PARTLY_FLOAT32 else 1e-12
    assert deviation(divided, whole) <= share * largest(whole), division


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_one_side_is_the_reference_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    case = ready(name, dtype)
    wanted = run_graph(case.bundle, case.inputs)
    found = case.model.run(case.inputs)
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    assert largest(wanted) > 0, "a comparison with nothing proves nothing"
    assert all(map(torch.equal, found, wanted))
    again = case.model.run(case.inputs)
    assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_policy(name: str, policy: str) -> None:
    """The robot is slow and the link fast, so that plans divide."""
    case = ready(name)
    rate = {"up": 1e8, "down": 1e8, "latency": 1e-6, "evaluations": 300, "chunks": 3}
    for dim in DIMS.get(name, (2, 3)):
        check_divided(name, case.division(dim, policy, **rate))


def random_divisions(name: str, seeds: Sequence[int]) -> int:
    """Returns how many operators both sides compute parts of."""
    case = ready(name)
    shared = 0
    for seed in seeds:
        dims = DIMS.get(name, (2, 3))
        division = json.loads(case.division(dims[seed % len(dims)], "random", seed=seed))
        division["chunks"] = seed % 8 + 1
        check_divided(name, json.dumps(division))
        shared += sum(end > begin and last > first for begin, end, first, last in division["shares"])
    return shared


@pytest.mark.parametrize("name", EXAMPLES)
def test_random_divisions(name: str) -> None:
    assert random_divisions(name, range(6)) > 0


@pytest.mark.verify
@pytest.mark.parametrize("name", EXAMPLES)
def test_many_random_divisions(name: str) -> None:
    random_divisions(name, range(6, 106))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in PARTLY_FLOAT32])
def test_float32_deviates_no_more_than_twice_the_unsplit_model(name: str) -> None:
    """From the float64 model; where that hits the same rounded value by luck, one unit in the last place counts."""
    exact, case = ready(name), ready(name, torch.float32)
    truth = exact.model.run(exact.inputs)
    unsplit = deviation(case.model.run(case.inputs), truth)
    limit = 2 * max(unsplit, torch.finfo(torch.float32).eps * largest(truth))
    for seed in range(4):
        dims = DIMS.get(name, (2, 3))
        division = case.division(dims[seed % len(dims)], "random", seed=seed)
        assert deviation(case.model.run_divided(case.inputs, division), truth) <= limit


@pytest.mark.parametrize("name", ["resnet", "unet", "vit"])
def test_whoever_stops_gets_the_answer_alone(name: str) -> None:
    case = ready(name)
    division = json.loads(case.division(2, "random", seed=3))
    division["chunks"] = 4
    text = json.dumps(division)
    steps = case.model.steps(text)
    assert steps > 10
    for after in {*range(0, steps, 7), steps - 1, steps}:
        check_divided(name, text, case.model.cut_short(case.inputs, text, after))


def test_parts_of_one_row_and_of_none() -> None:
    """Each row of the image's first operators once on this side and once on that."""
    case = ready("resnet")
    base = json.loads(case.division(2, "local"))
    rows = [end for _, end, _, _ in base["shares"]]
    for cut in (0, 1, 2):
        for low_is_robots in (False, True):
            shares = [[0, rows[0], 0, 0]]
            for count in rows[1:]:
                low, high = [0, min(cut, count)], [min(cut, count), count]
                shares.append([*low, *high] if low_is_robots else [*high, *low])
            check_divided("resnet", json.dumps({**base, "shares": shares, "chunks": 5}))


def test_errors_are_those_of_torch() -> None:
    case = ready("resnet")
    with pytest.raises(ValueError, match="is no device"):
        _C.InferModel(case.graph, case.bundle.weights, "toaster")
    with pytest.raises(torch.distributed.DistBackendError, match="there is no device"):
        _C.InferModel(case.graph, case.bundle.weights, "cuda:77")
    with pytest.raises(torch.distributed.DistNetworkError, match=r"the weight .* is missing"):
        _C.InferModel(case.graph, {})
    with pytest.raises(ValueError, match="0 inputs for a graph with 1"):
        case.model.run([])
    with pytest.raises(ValueError, match="input 0 is unlike"):
        case.model.run([case.inputs[0].float()])
    with pytest.raises(ValueError, match="give one for each"):
        case.model.run_divided(case.inputs, json.dumps({"input": 0, "dim": 2, "chunks": 1, "shares": []}))


def changed(graph: str, place: int, **fields: object) -> str:
    parsed = json.loads(graph)
    parsed["nodes"][place].update(fields)
    return json.dumps(parsed)


def test_models_that_cannot_run_are_refused() -> None:
    case = ready("resnet")
    relu = next(i for i, node in enumerate(case.bundle.graph["nodes"]) if node["op"].startswith("aten::relu"))
    tensor = case.bundle.graph["nodes"][relu]["args"][0]
    with pytest.raises(torch.distributed.DistBackendError, match="there is no operator my::relu"):
        _C.InferModel(changed(case.graph, relu, op="my::relu"), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="changes its arguments"):
        _C.InferModel(changed(case.graph, relu, op="aten::relu_"), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="has 1 arguments, not 2"):
        _C.InferModel(changed(case.graph, relu, args=[tensor, 1]), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="argument self is a text"):
        _C.InferModel(changed(case.graph, relu, args=[{"text": "x"}]), case.bundle.weights)
    with pytest.raises(torch.distributed.DistNetworkError, match="argument self is nothing"):
        _C.InferModel(changed(case.graph, relu, args=[None]), case.bundle.weights)
    other = _C.InferModel(changed(case.graph, relu, op="aten::nonzero"), case.bundle.weights)
    with pytest.raises(ValueError, match=r"aten::nonzero\) has made int64"):
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
    (found,) = _C.InferModel(json.dumps(graph), {}).run([x])
    assert found.dtype == torch.float16
    assert torch.equal(found, x * 1.5)


def test_activations_use_the_same_memory_again() -> None:
    """And nothing else does: tensors of the caller come and go beside it."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
    x = torch.randn(1, 3, 64, 64)
    bundle = capture(module, (x,))
    model = _C.InferModel(to_text(bundle.graph).decode(), bundle.weights)
    _C.infer_empty_arena()
    assert _C.infer_arena_bytes() == 0
    first = model.run([x])
    kept = _C.infer_arena_bytes()
    assert kept >= first[0].nbytes
    model.run([x])
    assert _C.infer_arena_bytes() == kept
    for size in (8192, 1 << 20):
        torch.empty(size).fill_(1)
    assert _C.infer_arena_bytes() == kept
    _C.infer_empty_arena()
    assert _C.infer_arena_bytes() == 0
    assert torch.equal(model.run([x])[0], first[0])
