# SPDX-License-Identifier: Apache-2.0
"""Modules that change after a session was made: the session reports it, and never mixes old and new weights."""

import contextlib
import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import atoll.infer
from atoll.infer import ModelChangedError, Session, capture
from atoll.infer.watching import Watch
from serving import Serve
from split_cases import READY_S
from support import sampled

FAST = {"profile_seconds": 0.0}
X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("shift", torch.ones(8))
        self.scale = torch.tensor(2.0)
        self.more: dict[str, Any] = {"a": [torch.ones(8)], "times": 1}
        self.factor, self._mode, self.sizes, self.act = 2.0, "plain", [1, {"a": (2, 3)}], torch.neg

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)) * self.scale + self.shift + self.more["a"][0] * self.more["times"]
        return self.act(x * self.factor * self.gain * len(self.sizes)) if self._mode == "plain" else x


def net() -> Net:
    torch.manual_seed(1)
    return Net().eval()


def step(optimizer: type[torch.optim.Optimizer], **options: Any) -> Callable[[Net], Any]:
    def change(model: Net) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer(model.parameters(), lr=0.1, **options).step()

    return change


def plus_one(model: Net) -> dict[str, torch.Tensor]:
    return {name: value + 1 for name, value in model.state_dict().items()}


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(8, 8))


CHANGES: dict[str, tuple[Callable[[Net], Any], str]] = {
    "in place": (lambda n: n.first.weight.add_(1), "first.weight"),
    "load_state_dict": (lambda n: n.load_state_dict({k: v + 1 for k, v in n.state_dict().items()}), "first.weight"),
    "assigned": (
        lambda n: n.load_state_dict({k: v + 1 for k, v in n.state_dict().items()}, assign=True),
        "the buffers",
    ),
    "data": (lambda n: setattr(n.first.weight, "data", torch.ones(8, 8)), "first.weight"),
    "data, turned": (lambda n: setattr(n.first.weight, "data", n.first.weight.data.t()), "first.weight"),
    # The next two are noticed by a sample of the parameter that is checked next.
    "data in place": (lambda n: [each.data.add_(1) for each in n.parameters()], "norm.weight"),
    "swapped": (lambda n: torch.utils.swap_tensors(n.first.weight, ones()), "first.weight"),
    "another parameter": (lambda n: setattr(n.first, "weight", ones()), "the parameters of first"),
    "another layer": (lambda n: setattr(n, "first", nn.Linear(8, 8).eval()), "the layers"),
    "parametrized": (lambda n: parametrizations.weight_norm(n.first).eval(), "the layers of first"),
    "buffer": (lambda n: n.norm.running_mean.add_(1), "norm.running_mean"),
    "another attribute": (lambda n: setattr(n, "scale", torch.tensor(3.0)), "scale"),
    "attribute in place": (lambda n: n.scale.add_(1), "scale"),
    "a number": (lambda n: setattr(n, "factor", 3.0), "factor"),
    "a number of another type": (lambda n: setattr(n, "factor", 2), "factor"),
    "a private text": (lambda n: setattr(n, "_mode", "b"), "_mode"),
    "a list": (lambda n: n.sizes.append(3), "sizes"),
    "a dict in a list": (lambda n: n.sizes[1].update(a=(2, 4)), "sizes"),
    "a number beside tensors": (lambda n: n.more.update(times=2), "more"),
    "a function": (lambda n: setattr(n, "act", torch.abs), "act"),
    "a number of the class": (lambda n: setattr(n, "gain", 2.0), "gain"),
    "a layer's number": (lambda n: setattr(n.norm, "eps", 0.1), "norm.eps"),
    "nested attribute": (lambda n: n.more["a"][0].add_(1), "more"),
    "SGD": (step(torch.optim.SGD), "first.weight"),
    "fused Adam": (step(torch.optim.Adam, fused=True), "norm.weight"),
    "a layer's hook": (lambda n: n.first.register_forward_hook(lambda m, i, o: o + 1), "the hooks of first"),
    "a layer's forward": (lambda n: setattr(n.first, "forward", lambda x: x), "the forward of first"),
}


# `make verify` has them.
LIKE_OTHERS = {"data, turned", "data in place", "nested attribute", "another layer", "fused Adam", "assigned",
               "a number of another type", "a dict in a list", "a layer's number"}  # fmt: skip


@pytest.mark.parametrize("name", sampled(CHANGES, LIKE_OTHERS))
def test_changes_are_noticed(name: str) -> None:
    change, what = CHANGES[name]
    plain, attached = net(), net()
    with Session(plain, X, **FAST) as session, torch.no_grad():
        divided = atoll.infer.attach(attached, X, **FAST)
        torch.testing.assert_close(session(X), attached(X))
        change(plain)
        change(attached)
        with pytest.raises(ModelChangedError, match=rf"has changed since it was captured \({what}"):
            session(X)
        with pytest.raises(ModelChangedError):
            session.submit(X).result(60)
        with pytest.warns(UserWarning, match=rf"not split.* \({what}"):
            got = attached(X)
        torch.testing.assert_close(got, copy.deepcopy(attached)(X))
    assert divided.report()["inferences"] == 1
    atoll.infer.detach(attached)


def test_equal_values_are_not_a_change() -> None:
    model = net()
    with Session(model, X, **FAST) as session:
        before = session(X)
        model.factor, model._mode, model.sizes, model.gain = float("2"), "-plain"[1:], [1, {"a": (2, 3)}], 1.0
        assert torch.equal(session(X), before)


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rows, self.hooked = 0, len(X), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls, self.rows = self.calls + 1, len(x)
        return super().forward(x)


def test_what_calls_themselves_set_is_not_a_change() -> None:
    model = Counting().eval()
    with Session(model, X, **FAST) as session, torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(session(X), model(X))
    session = atoll.infer.attach(model, X, **FAST)
    model.register_forward_hook(lambda m, i, o: setattr(m, "hooked", m.hooked + 1))
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in (X, X[:1], X, X[:1], X):
            model(x)
    assert ["has the shape" in str(each.message) for each in caught] == [True]
    assert (session.report()["inferences"], model.hooked) == (3, 5)
    atoll.infer.detach(model)


def test_a_bundle_is_saved_as_it_was_captured(tmp_path: Path) -> None:
    model = net()
    bundle = capture(model, X)
    with torch.no_grad():
        model.first.weight.add_(1)
    with pytest.raises(ModelChangedError, match=r"first\.weight"):
        bundle.save(tmp_path)
    with pytest.raises(ModelChangedError, match=r"first\.weight"):
        Session(bundle, **FAST)
    assert list(tmp_path.iterdir()) == []


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


def change_unseen(model: Deep) -> None:
    """Changes weights without a new version, at an element that is not sampled."""
    for layer in model.layers:
        layer.weight.data[0, 1] += 100


def test_unnoticed_changes_have_no_effect() -> None:
    torch.manual_seed(2)
    model, x = Deep().eval(), torch.randn(6, 32)
    with Session(model, x, **FAST) as session:
        before = session(x)
        change_unseen(model)
        assert torch.equal(session(x), before)


def test_robot_and_server_have_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, x = Deep().eval(), torch.randn(6, 32)
    with Serve(tmp_path) as server:
        for policy in ("local", "offload", "cut", "random", "tensor"):
            given = {"policy": policy, "hedge": "never", "silence": 60, "seed": 3, **FAST}
            with torch.no_grad():
                wanted = model(x)
            with Session(model, x, server=server.address, key_file=server.key_file, **given) as session:
                assert policy == "local" or session.wait_until_ready(READY_S), session.report()
                change_unseen(model)
                torch.testing.assert_close(session(x), wanted)
        assert server.stop() == 0, server.output


def test_a_session_keeps_no_module() -> None:
    model = net()
    with Session(model, X, **FAST) as session, torch.no_grad():
        wanted, weight = model(X), weakref.ref(model.first.weight)
        del model
        gc.collect()
        assert weight() is None
        torch.testing.assert_close(session(X), wanted)


def test_training_mode_is_not_a_change() -> None:
    model = net()
    session = atoll.infer.attach(model, X, **FAST)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = model(X)
        model.norm.train()
        model(X)
        model.norm.eval()
    assert ["in training mode" in str(each.message) for each in caught] == [True]
    assert session.report()["inferences"] == 1
    atoll.infer.detach(model)
    assert not torch.equal(model(X), before), "its statistics have moved"


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.mT,
        lambda t: t[:, 1:],
        lambda t: t[:1].expand(5, 3, 4),
        lambda t: t > 5,
        lambda t: t[0, 0, 0],
        lambda t: t.repeat(100, 1, 1) * torch.nan,
    ],
)
def test_samples_are_of_any_layout(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = nn.Module()
    model.register_buffer("held", view(torch.arange(24.0).reshape(2, 3, 4)))
    model.register_buffer("empty", torch.empty(0))
    watch = Watch(model, is_called=True)
    for _ in range(2):
        watch.refuse_changes()
    # Through another tensor with the same memory, which has a version of its own.
    bytes_of_it = torch.empty(0, dtype=torch.uint8).set_(model.held.untyped_storage())
    bytes_of_it.bitwise_xor_(1)
    for _ in range(4):
        with contextlib.suppress(ModelChangedError):
            watch.refuse_changes()
    for _ in range(2):  # and it remains changed
        with pytest.raises(ModelChangedError, match="held"):
            watch.refuse_changes()


def test_a_change_that_is_undone_is_not_a_change() -> None:
    model = net()
    watch = Watch(model, is_called=True)
    weight = model.first.weight
    model.first.weight = ones()
    with pytest.raises(ModelChangedError):
        watch.refuse_changes()
    model.first.weight = weight
    watch.refuse_changes()
