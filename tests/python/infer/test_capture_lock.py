# SPDX-License-Identifier: Apache-2.0
"""Captures while other threads capture, use the module, or trace with torch.export."""

import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from atoll.infer import ExportError, Session, capture, capture_lock, run_graph
from atoll.infer.module_copy import copy_of

FAST = {"profile_seconds": 0.0}
X = torch.randn(1, 3, 6, 5, generator=torch.Generator().manual_seed(0))
SECONDS = 300


class Net(nn.Module):
    """A model that also holds something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.memory = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 5)
        self.head.weight = self.memory.weight_ih_l0  # tied
        self.head.bias = self.memory.bias_ih_l0
        self.lock = threading.Lock()
        self.numbers = iter(range(3))
        self.held = {"lock": [threading.RLock()], "socket": socket.socket()}
        self.hidden = lambda x: self.first(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            rows = self.hidden(x).flatten(2).transpose(1, 2)
        return self.head(self.memory(rows)[0])


@pytest.fixture
def net() -> Iterator[Net]:
    torch.manual_seed(1)
    made = Net().eval()
    yield made
    made.held["socket"].close()


def test_sessions_in_several_threads_of_a_module_in_use(net: Net) -> None:
    with torch.no_grad():
        wanted = net(X)
    is_over = threading.Event()
    answers: list[Any] = []

    def use() -> None:
        while not is_over.is_set():
            try:
                with torch.no_grad():
                    answer = net(X)
                answers.append((type(answer), torch.allclose(answer, wanted, atol=1e-5)))
            except Exception as error:  # any error is reported below
                answers.append(error)

    def make(_: int) -> torch.Tensor:
        with Session(net, X, **FAST) as session:
            return session(X)

    with ThreadPoolExecutor(4) as pool:
        user = pool.submit(use)
        try:
            for answer in pool.map(make, range(3), timeout=SECONDS):
                torch.testing.assert_close(answer, wanted)
        finally:
            is_over.set()
        user.result(SECONDS)
    assert answers
    assert set(answers) == {(torch.Tensor, True)}


class Waits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_tracing, self.gate = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_tracing.set()
        self.gate.wait(SECONDS)
        return x + 1


def test_a_trace_of_the_programs_own_can_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    other, model = Waits(), nn.ReLU().eval()
    with ThreadPoolExecutor(2) as pool:
        export = pool.submit(torch.export.export, other, (X,), strict=False)
        assert other.is_tracing.wait(SECONDS)
        with monkeypatch.context() as patched:
            patched.setattr(capture_lock, "_MAX_SECONDS", 0.05)
            with pytest.raises(ExportError, match=r"torch\.export has been tracing for"):
                capture(model, X)
        captured = pool.submit(capture, model, X)
        other.gate.set()
        assert torch.equal(export.result(SECONDS).module()(X), X + 1)
        assert torch.equal(run_graph(captured.result(SECONDS), [X])[0], X.relu())


class ReadsParametersSlowly(Waits):
    """Waits at a place of torch.export where its flags are set and its modes are not."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        self.is_tracing.set()
        self.gate.wait(SECONDS)
        return super().named_parameters(*args, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_trace_is_noticed_from_its_first_line_to_its_last() -> None:
    other = ReadsParametersSlowly()
    with ThreadPoolExecutor(1) as pool:
        export = pool.submit(torch.export.export, other, (X,), strict=False)
        assert other.is_tracing.wait(SECONDS)
        try:
            assert torch._ops._mode_stack_state_for_pre_dispatch.count() == 0  # type: ignore[no-untyped-call]
            assert capture_lock._is_any_thread_tracing()
        finally:
            other.gate.set()
        export.result(SECONDS)
    assert not capture_lock._is_any_thread_tracing()


class ComputesOtherwiseWhileTraced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (1 if torch.compiler.is_compiling() else 2)


def test_flags_that_two_traces_left_set_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a capture would compare the graph with what the model computes while it is traced."""
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    with pytest.raises(ExportError, match="output is off by"):
        capture(ComputesOtherwiseWhileTraced(), X)
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


def test_a_disturbed_trace_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    export, failures = torch.export.export, [AssertionError("ProxyTorchDispatchMode slot already occupied by x")] * 3

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", disturbed)
    assert torch.equal(run_graph(capture(nn.ReLU().eval(), X), [X])[0], X.relu())
    assert failures == []
    failures += [AssertionError("ProxyTorchDispatchMode slot already occupied by x")] * 1000
    with pytest.raises(ExportError, match=r"torch\.export in another thread repeatedly disturbs the capture"):
        capture(nn.ReLU().eval(), X)


def test_a_child_forked_amid_a_capture_can_capture() -> None:
    is_held, gate = threading.Event(), threading.Event()

    def hold() -> None:
        with capture_lock.turn():
            is_held.set()
            gate.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert is_held.wait(SECONDS)
        child = os.fork()
        if child == 0:
            os._exit(0 if capture_lock._lock.acquire(timeout=0) else 1)
        gate.set()
        held.result(SECONDS)
    assert os.waitpid(child, 0)[1] == 0


def test_copies_share_memory_and_nothing_that_changes(net: Net) -> None:
    net.head.register_forward_hook(net.head.extra_repr)  # a method of a layer
    copied = copy_of(net)
    assert isinstance(copied, Net)
    for (name, one), (other_name, other) in zip(net.named_parameters(), copied.named_parameters(), strict=True):
        assert name == other_name
        assert one is not other
        assert isinstance(other, nn.Parameter)
        assert one.data_ptr() == other.data_ptr()
    for one, other in zip(net.modules(), copied.modules(), strict=True):
        assert one is not other
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
    assert copied.head.weight is copied.memory.weight_ih_l0
    assert all(any(each is own for own in copied.memory.parameters()) for each in copied.memory._flat_weights)
    assert copied.held is not net.held
    assert copied.held["socket"] is net.held["socket"]
    assert copied.lock is net.lock
    hook = next(iter(copied.head._forward_hooks.values()))
    assert hook.__self__ is copied.head


@pytest.mark.parametrize("start", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_capture_leaves_no_trace(start: Callable[[], Any], net: Net) -> None:
    net.hidden = functools.partial(net.first)  # unlike a closure, it does not refer to the original's layers
    attributes = {name: dict(vars(layer)) for name, layer in net.named_modules()}
    versions = {name: tensor._version for name, tensor in net.state_dict(keep_vars=True).items()}
    with start():
        capture(net, X)
    assert {name: dict(vars(layer)) for name, layer in net.named_modules()} == attributes
    assert {name: tensor._version for name, tensor in net.state_dict(keep_vars=True).items()} == versions
    torch.utils.swap_tensors(net.first[0].bias, nn.Parameter(torch.zeros(8)))  # fails if something still refers to it
