# SPDX-License-Identifier: Apache-2.0
"""Anything that Python code does around a module's forward has its effect exactly once, in sessions and in attached
modules, or is refused."""

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, prune

import atoll.infer
from atoll.infer import ExportError, Session, capture
from captured import Sides
from support import sampled

FAST = {"profile_seconds": 0.0}
X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
Change = Callable[[nn.Sequential], Any]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)).eval()


def changed(change: Change) -> nn.Module:
    made = net()
    result = change(made)
    return result.eval() if isinstance(result, nn.Module) and isinstance(result, Wrapped) else made.eval()


class Wrapped(nn.Module):
    """Does something around its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x * 2) + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Collects(Wrapped):
    """Collects a layer's output by a hook, as feature extractors do."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__(inner)
        self.found: dict[str, torch.Tensor] = {}
        inner[0].register_forward_hook(self.keep)

    def keep(self, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.found["x"] = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.found.pop("x")[..., :5]


def add_in_place(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    output.add_(5)


def forward_and_three(module: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    return nn.Sequential.forward(module, x) + 3


def patch(module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module.forward = make(module.forward)  # type: ignore[method-assign]


CHANGES: dict[str, Change] = {
    "hook": lambda n: n.register_forward_hook(lambda m, i, o: o + 5),
    "hook, kwargs, always": lambda n: n.register_forward_hook(
        lambda m, a, k, o: o * 3, with_kwargs=True, always_call=True
    ),
    "pre-hook": lambda n: n.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "pre-hook, kwargs": lambda n: n.register_forward_pre_hook(lambda m, a, k: ((a[0] * 2,), k), with_kwargs=True),
    "pre-hook, other shape": lambda n: n.register_forward_pre_hook(lambda m, i: i[0].repeat(2, 1, 1)),
    "two hooks": lambda n: [n.register_forward_hook(lambda m, i, o: o + 5) for _ in range(2)],
    "layer's hook": lambda n: n[0].register_forward_hook(lambda m, i, o: o + 5),
    "layer's hook in place": lambda n: n[0].register_forward_hook(add_in_place),
    "layer's pre-hook": lambda n: n[2].register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "backward hook": lambda n: n.register_full_backward_hook(lambda m, i, o: None),
    "__call__": Wrapped,
    "hook that collects": Collects,
    "method": lambda n: patch(n, lambda _: types.MethodType(forward_and_three, n)),
    "function": lambda n: patch(n, lambda before: lambda x: before(x) + 3),
    "partial": lambda n: patch(n, lambda _: functools.partial(forward_and_three, n)),
    "layer's function": lambda n: patch(n[0], lambda before: lambda x: before(x) + 3),
    "weight_norm": lambda n: nn.utils.weight_norm(n[0]),
    "spectral_norm": lambda n: nn.utils.spectral_norm(n[0]),
    "prune": lambda n: prune.l1_unstructured(n[0], "weight", 0.5),
    "parametrized weight_norm": lambda n: parametrizations.weight_norm(n[0]),
    "parametrized spectral_norm": lambda n: parametrizations.spectral_norm(n[0]),
    "orthogonal": lambda n: parametrizations.orthogonal(n[0]),
    "compiled": lambda n: n.compile(backend="eager"),
    "compiled layer": lambda n: n.__setitem__(0, torch.compile(n[0], backend="eager")),
    "compiled forward": lambda n: patch(n, lambda before: torch.compile(before, backend="eager")),
    "attached layer": lambda n: atoll.infer.attach(n[0], X, **FAST),
}


# `make verify` has them.
LIKE_OTHERS = {"hook, kwargs, always", "pre-hook, kwargs", "two hooks", "layer's hook", "partial", "compiled layer",
               "compiled forward", "parametrized weight_norm", "parametrized spectral_norm"}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", sampled(CHANGES, LIKE_OTHERS))
def test_it_counts_once(name: str) -> None:
    change = CHANGES[name]
    model = changed(change)
    inputs = [X, X + 1]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    bundle = capture(model, X)
    sides = [Sides.of(bundle, bundle.check_inputs((x,))) for x in inputs]
    with Session(bundle, **FAST) as session:
        for x, y, side in zip(inputs, wanted, sides, strict=True):
            torch.testing.assert_close(session(x), y)
            torch.testing.assert_close(side.divided(side.division(1, "random", seed=2))[0], y)
    session = atoll.infer.attach(model, X, **FAST)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(model(x), y)
    assert session.report()["inferences"] == 2
    atoll.infer.detach(model)
    with torch.no_grad():
        torch.testing.assert_close(model(X), wanted[0])


def test_hooks_that_only_observe() -> None:
    seen: list[torch.Tensor] = []

    def keep(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        seen.append(output)

    for where, name in ((0, " of 0"), (None, "")):
        model = net()
        (model if where is None else model[where]).register_forward_hook(keep)
        with pytest.raises(ExportError, match=f"the hook .*keep{name} does not change what the model computes"):
            capture(model, X)
    assert {type(each) for each in seen} == {torch.Tensor}, "nothing of the tracing"
    seen.clear()
    atoll.infer.attach(model, X, **FAST)
    for _ in range(3):
        model(X)
    assert len(seen) == 3, "an attached module's own hooks run at each call"


def test_one_observer_among_hooks_that_count() -> None:
    model = Collects(net()).eval()
    capture(model, X)
    model.inner[1].register_forward_pre_hook(lambda m, i: None)
    with pytest.raises(ExportError, match=r"the hook .*<lambda> of inner\.1 does not change"):
        capture(model, X)


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
def test_hooks_on_all_modules(kind: str) -> None:
    handle = getattr(torch_module, f"register_module_{kind}")(lambda *_: None)
    try:
        for make in (capture, atoll.infer.attach):
            with pytest.raises(ExportError, match="is a hook on all modules"):
                make(net(), X)
    finally:
        handle.remove()


def test_hooks_of_a_wrapper() -> None:
    wrapper = torch.compile(net(), backend="eager")
    wrapper.register_forward_hook(lambda m, i, o: o + 5)
    with pytest.raises(ExportError, match="the OptimizedModule around the model has its own hooks"):
        capture(wrapper, X)


def test_hooks_that_come_and_go_on_an_attached_module() -> None:
    model = net()
    session = atoll.infer.attach(model, X, **FAST)
    with torch.no_grad():
        before = model(X)
        handle = model.register_forward_hook(lambda m, i, o: o + 5)
        torch.testing.assert_close(model(X), before + 5)
        handle.remove()
        torch.testing.assert_close(model(X), before)
        assert session.report()["inferences"] == 3
        handle = model[0].register_forward_hook(lambda m, i, o: o * 0)
        with pytest.warns(UserWarning, match="not split.*the hooks of 0"):
            assert not torch.allclose(model(X), before)
        handle.remove()
        torch.testing.assert_close(model(X), before)
    assert session.report()["inferences"] == 4, "what is as it was is split again"
