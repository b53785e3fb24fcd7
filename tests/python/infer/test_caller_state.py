# SPDX-License-Identifier: Apache-2.0
"""PyTorch settings of the caller's thread affect no answer, wherever it is computed (docs/split-inference.md)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from atoll.infer import Session
from infer.split_cases import READY_S
from serving import Serve

ROWS = 4096  # enough for operators to use all threads


class Net(nn.Module):
    """A model whose answer would change with the states below: products, numbers close to zero, and, so that an
    engine is much faster, operators that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        same = x.unsqueeze(-1).repeat(1, 1, 128).amax(-1)
        return self.head(same), x * 1e-30 * 1e-10


def quick(net: Net) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    return lambda x: (net.head(x), x * 1e-30 * 1e-10)


class Spoiling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reaches a mode of the caller")


class Replacing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reaches a mode of the caller")


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "a dispatch mode": Spoiling,
    "a function mode": Replacing,
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "set_default_device": default_device,
    "torch.device": lambda: torch.device("meta"),
    "set_flush_denormal": flushing,
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(ROWS, 16, generator=torch.Generator().manual_seed(1)) + 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("serve")) as server:
        yield server


@pytest.fixture(scope="module", params=["robot", "engine", "server", "divided"])
def session(request: pytest.FixtureRequest, net: Net, x: torch.Tensor) -> Iterator[Session]:
    """Opens a session whose answers are computed in this way."""
    way = request.param
    options: dict[str, Any] = {"profile_seconds": 0.0}
    if way == "engine":
        options |= {"engine": quick(net)}
    if way in ("server", "divided"):
        served = request.getfixturevalue("server")
        options |= {"server": served.address, "key_file": served.key_file, "hedge": "never", "silence": 60}
        options |= {"policy": "offload" if way == "server" else "tensor"}
    with Session(net, (x,), **options) as made:
        if "server" in options:
            assert made.wait_until_ready(READY_S)
        yield made
        last = made.last
        assert last is not None
        assert last.origin == {"server": "server", "divided": "mixed"}.get(way, "local")
        assert bool(made.report()["engine"]["runs"]) == (way == "engine")


@pytest.fixture(scope="module")
def wanted(session: Session, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    answer: tuple[torch.Tensor, torch.Tensor] = session(x)
    assert answer[1].count_nonzero() == answer[1].numel(), "close to zero, but not zero"
    return answer


@pytest.mark.parametrize("state", STATES)
def test_no_state_reaches_an_answer(
    state: str, session: Session, x: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor]
) -> None:
    with STATES[state]():
        answer = session(x)
    for found, expected in zip(answer, wanted, strict=True):
        assert found.dtype == expected.dtype
        assert found.device == expected.device
        assert torch.equal(found, expected)
        assert found.is_inference() == (state == "inference mode"), "like a tensor that torch.empty makes there"
        assert not found.requires_grad


def test_inputs_that_require_gradients_are_values(session: Session, x: torch.Tensor) -> None:
    for found in session(x.clone().requires_grad_()):
        assert not found.requires_grad


@pytest.fixture(scope="module")
def plain(net: Net, x: torch.Tensor) -> str:
    """Returns the hash of the bundle that is captured outside of any state."""
    with Session(net, (x,), profile_seconds=0.0) as session:
        return session.bundle.hash


@pytest.mark.parametrize("state", STATES)
def test_no_state_reaches_what_is_captured(state: str, net: Net, x: torch.Tensor, plain: str) -> None:
    with STATES[state](), Session(net, (x,), profile_seconds=0.0) as session:
        pass
    assert session.bundle.hash == plain


def test_a_state_is_restored_afterwards(session: Session, x: torch.Tensor) -> None:
    with flushing():
        session(x)
        assert torch.tensor(1e-30) * 1e-10 == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        session(x)
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
