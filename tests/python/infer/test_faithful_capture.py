# SPDX-License-Identifier: Apache-2.0
"""A captured graph gives what a call of the module gives, or is refused: eager paths that tracing does not take,
memory layouts, orders, default dtypes, and special kinds of tensors."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from atoll.infer import ExportError, InputError, Session, capture, comparison, run_graph
from atoll.infer.structure import class_name
from captured import Sides
from support import later

FAST = {"profile_seconds": 0.0}
X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 5, 4, generator=torch.Generator().manual_seed(1))
LAST = IMAGE.to(memory_format=torch.channels_last)
MASK = torch.tensor([[False] * 4, [False, False, True, True]])


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def refusal(function: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ExportError) as caught:
        capture(Calls(function), args)
    return str(caught.value)


def encoder(**options: Any) -> nn.Module:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


@pytest.mark.parametrize("mask", [later(MASK), torch.zeros_like(MASK)], ids=["padded", "not padded in the example"])
def test_padded_places_that_a_fast_path_sets_to_zero(mask: torch.Tensor) -> None:
    model = nn.ModuleDict({"body": encoder()}).eval()
    model.forward = lambda x, mask: model["body"](x, src_key_padding_mask=mask)  # type: ignore[method-assign]
    with pytest.raises(ExportError, match=r"gets a src_key_padding_mask.*set_fastpath_enabled\(False\)"):
        capture(encoder(), X, {"src_key_padding_mask": mask})
    with torch.no_grad():
        for good in (encoder(enable_nested_tensor=False), encoder()):
            enabled = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(good.use_nested_tensor is False)
            try:
                found = run_graph(capture(good, X, {"src_key_padding_mask": mask}), [X, MASK])[0]
                torch.testing.assert_close(found, good(X, src_key_padding_mask=MASK))
            finally:
                torch.backends.mha.set_fastpath_enabled(enabled)


def test_fast_paths_that_give_the_same() -> None:
    with torch.no_grad():
        torch.testing.assert_close(run_graph(capture(encoder(), X), [X])[0], encoder()(X))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x + (1 if torch.compiler.is_compiling() else 2), "output is off by 0.* at .* from the graph"),
        (lambda x: x > (1 if torch.compiler.is_compiling() else 2), "0.* of output differs at .*1 from the graph"),
        (
            lambda x: x / (0 if torch.compiler.is_compiling() else 1),
            "output is off by inf of its largest magnitude at .*inf from the graph",
        ),
        (
            lambda x: x.double() if torch.compiler.is_compiling() else x,
            "output is float64 .* in the graph, but float32",
        ),
        (lambda x: (x, 1 if torch.compiler.is_compiling() else 2), "another structure while it is captured"),
    ],
)
def test_another_path_while_captured(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        capture(Calls(function), X)


def test_not_a_number_equals_itself_and_rounding_is_no_difference() -> None:
    nowhere = X.clone()
    nowhere[0] = torch.nan
    capture(Calls(lambda x: (x / 0, x.log(), x > 0)), nowhere)
    wanted = torch.tensor([1.0, torch.inf, torch.nan, -2.0])
    assert comparison._errors(wanted, wanted).max() == 0
    assert comparison._errors(wanted, wanted * torch.tensor([1.0, 1.0, 1.0, 1.5])).max() == pytest.approx(1 / 3)
    assert comparison._errors(wanted, -wanted).max() == torch.inf
    assert comparison._errors(wanted, wanted.nan_to_num(0)).max() == torch.inf


def test_rounding_that_grows_is_told_from_another_value() -> None:
    """Sums that nearly cancel: both float32 results are far off, and only float64 shows that they are equally good."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        big = x.sum(-1) * 1e4
        return big + x.mean() - (x.flip(-1).sum(-1) if torch.compiler.is_compiling() else x.sum(-1)) * 1e4

    capture(Calls(forward), torch.randn(64, 100, generator=torch.Generator().manual_seed(3)))
    assert "output is off by" in refusal(lambda x: forward(x) + (10 if torch.compiler.is_compiling() else 0), X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1 if x.is_contiguous() else x - 4,
        lambda x: x.as_strided((2, 3), (1, 2)),
        lambda x: x * x.stride(1),
    ],
)
def test_layouts_of_examples(function: Callable[..., Any]) -> None:
    """A session computes with inputs in row-major order, so the example must give the same in that order."""
    assert "depend on the memory layout (strides) of args[0]" in refusal(function, LAST)
    with Session(Calls(function), IMAGE, **FAST) as session:
        for given in (IMAGE, LAST, IMAGE.mT.contiguous().mT):
            assert torch.equal(session(given), function(IMAGE))


@pytest.mark.parametrize("example", [IMAGE, LAST, IMAGE[:, :1].expand(1, 3, 5, 4), torch._neg_view(IMAGE)])
def test_layouts_of_inputs(example: torch.Tensor) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3)).eval()
    for model in (net, net.to(memory_format=torch.channels_last)):
        bundle = capture(model, example)
        with Session(bundle, **FAST) as session, torch.no_grad():
            for given in (
                IMAGE,
                LAST,
                IMAGE[:, :1].expand(1, 3, 5, 4),
                torch._neg_view(IMAGE),
                example.requires_grad_(False),
            ):
                torch.testing.assert_close(session(given), model(given))
                sides = Sides.of(bundle, bundle.check_inputs((given,)))
                torch.testing.assert_close(sides.divided(sides.division(2, "random", seed=1))[0], model(given))


def test_strides_of_weights() -> None:
    class Net(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight.as_strided((2,), (1,)).sum()

    for weight in (X[0], X[0].t()):
        net = Net(weight).eval()
        with Session(net, X) as session:
            torch.testing.assert_close(session(X), net(X))


def test_the_same_tensor_twice() -> None:
    for example in ((X, X), (X, X[:]), (X, X + 1)):
        with Session(Calls(lambda a, b: a * 2 - b), example, **FAST) as session:
            torch.testing.assert_close(session(X, X + 1), X - 1)
            torch.testing.assert_close(session(X, X), X)
    weighted = nn.Linear(8, 8).eval()
    with Session(weighted, weighted.weight, **FAST) as session, torch.no_grad():
        torch.testing.assert_close(session(X[0].repeat(2, 1)), weighted(X[0].repeat(2, 1)))


def test_orders_of_keys() -> None:
    batch = {"a": X, "b": X + 1}
    bundle = capture(Calls(lambda batch: batch["a"] - 2 * batch["b"]), (batch,))
    turned = bundle.check_inputs((dict(reversed(batch.items())),))
    torch.testing.assert_close(run_graph(bundle, turned)[0], -X - 2)
    assert "the order of the keys" in refusal(lambda batch: torch.cat(list(batch.values())), batch)
    assert "the order of the keys" in refusal(lambda lists: next(iter(lists[0].values())), [batch])

    class Named(nn.Module):
        def forward(self, **parts: torch.Tensor) -> torch.Tensor:
            return torch.cat(list(parts.values()))

    with pytest.raises(ExportError, match="the order of the keys"):
        capture(Named().eval(), (), batch)


@pytest.fixture
def doubles() -> Any:
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


def test_default_dtypes(doubles: Callable[[], None]) -> None:
    numbers = torch.arange(3)
    relies, told = Calls(lambda n: n / 2), Calls(lambda n: n.to(torch.float64) + torch.ones(3, dtype=torch.float64))
    with Session(relies, numbers, **FAST) as session, Session(told, numbers, **FAST) as other:
        doubles()
        with pytest.raises(InputError, match="the default dtype is float64, but aten::div of the graph"):
            session(numbers)
        assert torch.equal(other(numbers), numbers + 1.0)
        with pytest.raises(ExportError, match="aten::div computes in the default dtype, which is float64 here"):
            capture(relies, numbers)
        capture(told, numbers)


class Plain(torch.Tensor):
    pass


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 1 if func is torch.relu else result


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_no_values() -> None:
    odd = [X.to_sparse(), X.to("meta"), torch.nested.nested_tensor([X[0], X[1]]), X.to_mkldnn()]
    odd += [torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), FakeTensorMode().from_tensor(X)]
    with Session(Calls(torch.relu), X, **FAST) as session:
        for each in odd:
            with pytest.raises(InputError, match=r"args\[0\] is a .*: give a dense tensor that has its values"):
                session(each)
            with pytest.raises(ExportError, match=r"args\[0\] is a .*: give a dense tensor that has its values"):
                capture(Calls(torch.relu), each)
        with pytest.raises(InputError, match=r"a transformed \(torch\.func\) tensor"):
            torch.vmap(session)(torch.stack([X, X]))
        assert torch.equal(session(X.as_subclass(Plain)), X.relu())
        with pytest.raises(InputError, match=r"is a Odd, .* pass args\[0\]\.as_subclass\(torch\.Tensor\)"):
            session(X.as_subclass(Odd))
    assert "output is off by" in refusal(torch.relu, X.as_subclass(Odd))
    with Session(Calls(torch.sigmoid), X.as_subclass(Odd), **FAST) as session:
        assert torch.equal(session(X.as_subclass(Odd)), X.sigmoid())


def test_weights_and_examples_of_inference_mode() -> None:
    with torch.inference_mode():
        net, example = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(4)).eval(), X * 2
        inside = Session(net, example, **FAST)
    with inside, Session(net, example, **FAST) as session, torch.no_grad():
        torch.testing.assert_close(session(X), net(X))
        torch.testing.assert_close(inside(X), net(X))


def test_a_cache_outside_of_the_module() -> None:
    cache: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not cache:
            cache.append(torch.arange(8.0))
        return x + cache[0]

    assert "outside the module" in refusal(forward, X)
    cache.clear()
    forward(X)
    assert torch.equal(run_graph(capture(Calls(forward), X), [X])[0], forward(X))


class Remembers(nn.Module):
    """Keeps something that is not a tensor in its attributes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.count, self.seen = kind, 0, {"rows": [0]}
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        if self.kind == "number":
            return x + self.count
        if self.kind == "flag":
            return x if self.count == 1 else x * 2
        if self.kind == "output":
            return x, self.count
        if self.kind == "list":
            self.seen["rows"].append(x.shape[1])
            return x + sum(self.seen["rows"])
        self.seen["cache"] = self.seen.get("cache") or [float(x.shape[1])]
        return x * self.seen["cache"][0]


@pytest.mark.parametrize("kind", ["number", "flag", "output", "list"])
def test_state_that_is_not_a_tensor(kind: str) -> None:
    module = Remembers(kind)
    with pytest.raises(ExportError, match=r"a second call of the model .*a session keeps no state"):
        capture(module, X)
    assert (module.count, module.seen) == (0, {"rows": [0]})


def test_counts_and_caches_that_change_no_answer() -> None:
    module = Remembers("cache")
    with Session(module, X, **FAST) as session:
        for _ in range(2):
            assert torch.equal(session(X), module(X))


@dataclass
class Scaled:
    values: Any

    def __post_init__(self) -> None:
        self.values = self.values * 2


class Shifted(UserDict[str, torch.Tensor]):
    def __init__(self, items: dict[str, torch.Tensor]) -> None:
        super().__init__({name: item + 1 for name, item in items.items()})


@dataclass
class Checked:
    values: torch.Tensor
    rows: int = 0

    def __post_init__(self) -> None:
        self.rows = len(self.values)


def test_classes_that_compute_when_they_are_made() -> None:
    makers: list[Callable[[torch.Tensor], Any]] = [
        Scaled,
        lambda x: [Scaled(1), x],
        lambda x: Shifted({"x": x}),
    ]
    for make, kind in zip(makers, (Scaled, Scaled, Shifted), strict=True):
        words = f"holds a {class_name(kind)}, which changes its fields when it is made"
        assert f"output {words}" in refusal(make, X)
        assert f"the example {words}" in refusal(lambda _: X + 1, make(X))
    with Session(Calls(lambda checked: Checked(checked.values + 1)), Checked(X), **FAST) as session:
        assert torch.equal(session(Checked(X * 2)).values, X * 2 + 1)


def test_what_is_switched_off_draws_nothing() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.RReLU(), nn.AlphaDropout()).eval()
    assert torch.equal(run_graph(capture(net, X), [X])[0], net(X))
    with pytest.raises(ExportError, match="draws random numbers"):
        capture(Calls(lambda x: functional.dropout(x, 0.5, training=True)), X)
