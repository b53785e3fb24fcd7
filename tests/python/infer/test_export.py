# SPDX-License-Identifier: Apache-2.0
"""atoll.infer.capture: which parts of a module are in the graph, and which errors refuse others."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from atoll.infer import Bundle, ExportError, InputError, capture, run_graph
from atoll.infer.convert import _refuse_operator

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Calls(nn.Module):
    """Calls a function in its forward; `held` become buffers that are not saved."""

    def __init__(self, function: Callable[..., Any], **held: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.eval()
        for name, tensor in held.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def of(function: Callable[..., Any], x: torch.Tensor = X, **held: torch.Tensor) -> Bundle:
    return capture(Calls(function, **held), x)


def operators(bundle: Bundle) -> list[str]:
    return [node["op"].removeprefix("aten::") for node in bundle.graph["nodes"]]


def check(function: Callable[..., Any], x: torch.Tensor = X, **held: torch.Tensor) -> Bundle:
    """Checks that the captured function's graph gives the function's values, for the example and for other inputs."""
    bundle = of(function, x, **held)
    module = Calls(function, **held)
    for other in (x, x.flip(0)):
        with torch.no_grad():
            wanted = module(other.clone())
        found = bundle.output.build(run_graph(bundle, [other]))
        leaves, spec = pytree.tree_flatten(found)
        wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
        assert spec == wanted_spec
        for one, two in zip(leaves, wanted_leaves, strict=True):
            if isinstance(two, torch.Tensor):
                torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
            else:
                assert one == two
    return bundle


def refusal(function: Callable[..., Any], x: torch.Tensor = X, **held: torch.Tensor) -> str:
    with pytest.raises(ExportError) as caught:
        of(function, x, **held)
    return str(caught.value)


def line_of(code: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(code)
    return first + next(place for place, line in enumerate(lines) if text in line)


def test_python_numbers_stay_numbers() -> None:
    """A number in a tensor's place does not promote: float16 stays float16, and an integer that is divided becomes a
    float."""
    half = check(lambda _, x: (x * 2.5 + 1) / 3, X.half())
    assert half.graph["tensors"][half.graph["outputs"][0]["tensor"]]["dtype"] == "float16"
    assert [node["args"][1] for node in half.graph["nodes"]] == [2.5, 1, 3]
    check(lambda _, x: x / 2, torch.arange(6).reshape(2, 3))
    check(lambda _, x: x.pow(2) > 3, torch.arange(6).reshape(2, 3))


def test_infinities_and_nan() -> None:
    mask = torch.tensor([[True, False, True, False]])
    bundle = check(lambda self, x: x.masked_fill(self.mask, -torch.inf).softmax(-1), mask=mask)
    assert {"float": "-inf"} in [argument for node in bundle.graph["nodes"] for argument in node["args"]]
    check(lambda self, x: x.masked_fill(self.mask, torch.nan), mask=mask)
    check(lambda _, x: torch.full_like(x, torch.inf) + x)


def test_constants_and_buffers_that_are_not_saved() -> None:
    bundle = check(lambda self, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.offset, offset=X[0])
    assert "offset" in bundle.weights
    assert len(bundle.weights) == 2
    assert operators(bundle) == ["mul", "add"]


def test_what_changes_nothing_is_left_out() -> None:
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(x.to(x.dtype), 0.5, training=False).detach()
        return x.clone() + x.contiguous().to(torch.float64)

    bundle = check(forward)
    assert operators(bundle) == ["_to_copy", "add"]
    assert bundle.graph["nodes"][0]["args"][:2] == [{"tensor": 0}, {"dtype": "float64"}]


def test_a_clone_that_changes_strides_stays() -> None:
    bundle = check(lambda _, x: x.transpose(1, 2).contiguous().view(2, 12))
    assert operators(bundle) == ["transpose", "clone", "view"]


def test_several_results() -> None:
    def forward(_: nn.Module, x: torch.Tensor) -> Any:
        values, places = x.max(2)
        first, _, third = x.unbind(1)
        left, right = x.split([1, 3], dim=2)
        return [values, {"places": places}], first + third, right, left

    bundle = check(forward)
    nodes = {node["op"]: node for node in bundle.graph["nodes"]}
    assert nodes["aten::max"]["list"] is False
    assert len(nodes["aten::max"]["outputs"]) == 2
    assert nodes["aten::unbind"]["list"] is True
    assert len(nodes["aten::unbind"]["outputs"]) == 3
    assert [type(place) for node in bundle.graph["nodes"] for place in node["outputs"]] == [int] * 8


def test_outputs_may_be_constants_inputs_weights_or_the_same() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        return {"x": x, "none": None, "n": 3, "name": "a", "w": self.w, "twice": (x + 1,) * 2}

    bundle = check(forward, w=X[0])
    assert bundle.output.paths("output") == ["output['x']", "output['w']", "output['twice'][0]", "output['twice'][1]"]
    assert len(bundle.graph["nodes"]) == 1


def test_changes_of_own_tensors_become_values() -> None:
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(2, 3, 4)
        y[:, 0] = x[:, 1]
        y[0, 1:, 2] = 7
        y.add_(x).relu_()
        return y

    bundle = check(forward)
    assert "copy" not in operators(bundle)
    assert not any(name.endswith("_") for name in operators(bundle))


def test_slices_to_the_end_have_the_size() -> None:
    bundle = check(lambda _, x: x[:, 1:] + x[:, :-1])
    assert [node["args"][2:] for node in bundle.graph["nodes"][:2]] == [[1, 3, 1], [0, -1, 1]]


def test_indices_with_gaps() -> None:
    bundle = check(lambda _, x: x[:, torch.tensor([2, 0]), :], X)
    index = next(node for node in bundle.graph["nodes"] if node["op"] == "aten::index")
    assert index["args"][1]["tensors"][0] is None


def test_devices_are_the_runners_own() -> None:
    bundle = check(lambda _, x: x + torch.arange(4, device=x.device))
    arange = next(node for node in bundle.graph["nodes"] if node["op"] == "aten::arange")
    assert {"device": True} in arange["args"]
    assert "cpu" not in json.dumps(bundle.graph)


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    before = {name: (id(value), value.clone()) for name, value in module.state_dict(keep_vars=True).items()}
    capture(module, torch.randn(1, 1, 5, 5))
    for name, value in module.state_dict(keep_vars=True).items():
        assert id(value) == before[name][0]
        assert torch.equal(value, before[name][1])
        assert value.requires_grad == (name in dict(module.named_parameters()))


class Choosing(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 1.0, *, flip: bool = False, mask: Any = None) -> torch.Tensor:
        x = x * scale
        if mask is not None:
            x = x * mask["keep"]
        return x.flip(0) if flip else x


def test_plain_arguments_are_fixed() -> None:
    mask = {"keep": torch.ones(4), "name": "m"}
    bundle = capture(Choosing().eval(), (X, 2.0), {"flip": True, "mask": mask})
    assert bundle.inputs.names() == ["x", "mask['keep']"]
    assert len(bundle.graph["inputs"]) == 2
    tensors = bundle.check_inputs((), {"mask": dict(reversed(mask.items())), "scale": 2.0, "x": X, "flip": True})
    assert torch.equal(run_graph(bundle, tensors)[0], (X * 2).flip(0))
    good: dict[str, Any] = {"x": X, "scale": 2.0, "flip": True, "mask": mask}
    for change, message in [
        ({"scale": 3.0}, "scale is 3.0, but the example's was 2.0, which the graph holds"),
        ({"scale": 2}, "scale is 2, but the example's was 2.0"),
        ({"flip": 1}, "flip is 1, but the example's was True"),
        ({"x": 5}, "x is 5, but the example's was a tensor"),
        ({"x": X[:1]}, "x has the shape [1, 3, 4], but the example's was [2, 3, 4]: a graph has one fixed shape"),
        ({"x": X.double()}, "x is float64, but the example's was float32: convert it"),
        ({"mask": None}, "mask is None, but the example's was a dict"),
        ({"mask": {"keep": mask["keep"]}}, "mask['name'] is missing, but the example had it"),
        ({"mask": {**mask, "more": 1}}, "mask['more'] was not in the example"),
        ({"mask": {**mask, "keep": [X]}}, "mask['keep'] is a list of 1, but the example's was a tensor"),
        ({"other": 1}, "other was not in the example"),
    ]:
        with pytest.raises(InputError) as caught:
            bundle.check_inputs((), good | change)
        assert message in str(caught.value)
    with pytest.raises(InputError, match="x is passed by position and by name"):
        bundle.check_inputs((X,), good)


def test_arguments_without_names() -> None:
    class Sums(nn.Module):
        def forward(self, *parts: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return sum(parts) - more["less"]

    bundle = capture(Sums().eval(), (X, X + 1), {"less": X * 3})
    assert bundle.inputs.names() == ["args[0]", "args[1]", "less"]
    assert torch.equal(run_graph(bundle, bundle.check_inputs((X, X), {"less": X}))[0], X)
    with pytest.raises(InputError, match=r"args\[1\] is missing"):
        bundle.check_inputs((X,), {"less": X})


def test_training_mode() -> None:
    with pytest.raises(ExportError, match=r"the model is in training mode: call eval\(\) first"):
        capture(nn.Linear(4, 4), X)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(ExportError, match=r"its 1 \(Dropout\) is in training mode"):
        capture(model, X)


def test_paths_that_depend_on_values() -> None:
    def forward(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    told = refusal(forward)
    assert f"{__file__}:{line_of(forward, 'if x.sum()')}: if x.sum() > 0:" in told
    assert "torch.where" in told
    assert "forward branches on a value" in told


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _, x: x[x > 0], "depends on values"),
        (lambda _, x: x.sum().item(), "output is a torch.SymFloat, a number that is computed from tensors"),
        (lambda _, x: x * x.sum().item(), "depends on values"),
        (lambda _, x: torch.zeros(int(x.sum())), "value"),
        (lambda _, x: torch.from_numpy(x.numpy()) + 1, "reads values of a tensor"),
        (lambda _, x: x + torch.rand(4), "it draws random numbers, which two machines cannot share: draw them outside"),
        (lambda _, x: functional.dropout(x, 0.5, training=True), "draws random numbers"),
        (lambda _, x: torch.view_as_complex(x.reshape(2, 3, 2, 2)).abs(), "complex64: choose from float64, float32"),
        (lambda _, x: x.add_(1), "forward changes its input x in place"),
        (lambda _, x: functional.relu(x, inplace=True), "forward changes its input x in place"),
        (lambda self, x: x + self.count.add_(1), "forward changes count in place, but a session keeps no state"),
        (lambda _, x: 3, "forward returns no tensor"),
        (lambda _, x: {"y": {x}}, "output['y'] is a builtins.set, which is not a tensor, number, string, tuple"),
        (lambda _, x: {1.5: x}, "output has the key 1.5"),
        (lambda _, x: x + undefined, "NameError: name 'undefined' is not defined"),  # noqa: F821
        (lambda _, x: x @ x, "forward cannot be captured"),
        (lambda _, x: x.reshape(1, 1, 1, 1, 1, 1, 2, 3, 4), "9 dimensions, more than the maximum of 8"),
        (lambda _, x: x + 2**50, "integers in a graph must be smaller than 2^40"),
    ],
)
def test_refusals(function: Callable[..., Any], words: str) -> None:
    told = refusal(function, count=torch.zeros(1))
    assert words in told
    assert "torch.export" not in told
    assert len(told) < 900


def test_operators_that_change_operands() -> None:
    """PyTorch captures other operators in their place; any that it might leave are refused."""
    with pytest.raises(ExportError, match=r"^it changes its operands in place$"):
        _refuse_operator(torch.ops.aten.add_.Tensor, {})


def test_refusals_name_the_line() -> None:
    class Selects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            return y.nonzero() * 2

    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn_like(x)
            return x + noise

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(5, 5)

    for kind, text in ((Selects, "y.nonzero()"), (Draws, "torch.randn_like"), (Fails, "x.view")):
        with pytest.raises(ExportError) as caught:
            capture(nn.Sequential(kind()).eval(), X)
        assert f"{__file__}:{line_of(kind, text)}: " in str(caught.value), text


def test_state_in_attributes() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()
            self.inner.register_buffer("seen", torch.zeros(1))
            self.mode = "plain"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.mode == "plain":
                self.inner.last = x
            elif self.mode == "nested":
                self.inner.all = {"deep": [x]}
            else:
                self.inner.seen = self.inner.seen + 1
            return x + 1

    for mode, name in (("plain", "inner.last"), ("nested", "inner.all['deep'][0]"), ("buffer", "inner.seen")):
        module = Counts().eval()
        module.mode = mode
        with pytest.raises(ExportError) as caught:
            capture(module, X)
        assert f"forward stores a tensor in {name}, but a session keeps no state" in str(caught.value)


def test_state_in_a_tensor_that_is_no_buffer() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.total.add_(x[0]) + x

    module = Sums().eval()
    with pytest.raises(ExportError, match=r"forward changes total in place"):
        capture(module, X)
    assert torch.equal(module.total, torch.zeros(3, 4))


def test_more_operands_than_a_node_may_have() -> None:
    assert "aten::cat: it has" in refusal(lambda _, x: torch.cat([x] * 1000))


def test_a_cache_that_is_full_is_no_state() -> None:
    class Caches(nn.Module):
        table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(4.0)
            return x + self.table

    module = Caches().eval()
    with pytest.raises(ExportError, match="forward stores a tensor in table"):
        capture(module, X)
    module = Caches().eval()
    module(X)
    assert torch.equal(run_graph(capture(module, X), [X])[0], X + torch.arange(4.0))


def test_a_cache_as_an_output() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                      intermediate_size=8)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(ExportError, match="use_cache=False"):
        capture(model, (torch.zeros(1, 3, dtype=torch.int64),), {"use_cache": True})


def test_models_without_values() -> None:
    with pytest.raises(ExportError, match="weight has no values: load the model's weights first"):
        capture(nn.Linear(4, 4, device="meta").eval(), X.to("meta"))
    with pytest.raises(ExportError, match="weight has no shape yet: call the model once"):
        capture(nn.LazyLinear(4).eval(), X)
    with pytest.raises(ExportError, match=r"is a function: pass a torch\.nn\.Module"):
        capture(functional.relu, X)  # type: ignore[arg-type]


def test_scripted_modules() -> None:
    with pytest.raises(ExportError, match="a ScriptModule: pass the module that it was made from"):
        capture(torch.jit.script(nn.Linear(4, 4).eval()), X)


def test_a_refusal_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    refusal(lambda _, x: torch.zeros(int(x.sum())))
    assert capfd.readouterr() == ("", "")


def test_an_argument_that_is_no_tensor() -> None:
    with pytest.raises(ExportError, match=r"x is a numpy.ndarray, which is not a tensor, number"):
        capture(Calls(lambda _, x: x), X.numpy())
