# SPDX-License-Identifier: Apache-2.0
"""A robot and a server as users run them: `atoll serve` and sessions, with real processes and sockets."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.infer import RefusedError
from launching import eventually
from serving import Serve
from split_cases import READY_S

POLICIES = ["local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "hybrid-parallel", "random", "auto"]


class Net(nn.Module):
    """A model with residual blocks, strides and an odd size, a head that needs all rows, and a structured output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, 1, 1))
        self.head = nn.Linear(8, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.first(image.to(self.head.weight.dtype) / 255)
        x = x + self.second(x)
        return {"map": torch.sigmoid(x), "scores": self.head(x.mean((2, 3)))}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    net = Net()
    net(torch.randint(0, 256, (4, 3, 53, 47), dtype=torch.uint8))  # statistics of batch norm
    return net.eval()


def image(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (1, 3, 53, 47), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("serve")) as server:
        yield server
        assert server.stop() == 0, server.output


def session_of(net: nn.Module, server: Serve, **options: Any) -> atoll.infer.Session:
    settings = {"profile_seconds": 0.05, "hedge": "never", "silence": 60} | options  # a busy server is not a lost one
    return atoll.infer.Session(net, (image(0),), server=server.address, key_file=server.key_file, **settings)


def check(net: nn.Module, session: atoll.infer.Session, seed: int) -> None:
    with torch.no_grad():
        expected, exact = net(image(seed)), copy.deepcopy(net).double()(image(seed))
    found = session(image(seed))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == torch.float32
        allowed = 2 * (expected[name] - exact[name]).abs().max() + 1e-7 * exact[name].abs().max()
        assert (value - exact[name]).abs().max() <= allowed, session.last


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_the_models(net: Net, server: Serve, policy: str) -> None:
    with session_of(net, server, policy=policy, seed=3) as session:
        if policy != "local":
            assert session.wait_until_ready(READY_S), session.report()
        for seed in range(3):
            check(net, session, seed)
        assert session.last is not None
        if policy in ("offload", "stream"):
            assert session.last.origin == "server", session.report()
            assert session.last.up_bytes <= image(0).numel(), session.last
        if policy == "local":
            assert session.last.origin == "local"


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 20), marks=pytest.mark.verify)], ids=["5", "20"])
def test_random_plans(net: Net, server: Serve, seeds: range) -> None:
    origins = set()
    for seed in seeds:
        with session_of(net, server, policy="random", seed=seed) as session:
            assert session.wait_until_ready(READY_S), session.report()
            check(net, session, seed)
            assert session.last is not None
            origins.add(session.last.origin)
    assert "mixed" in origins


def test_a_killed_server_costs_no_answer(net: Net, tmp_path: Path) -> None:
    with Serve(tmp_path) as server:
        session = session_of(net, server, policy="offload", hedge="deadline")
        assert session.wait_until_ready(READY_S)
        check(net, session, 0)
        assert session.last is not None
        server.process.kill()
        server.process.wait()
        for seed in range(5):
            check(net, session, seed)
        assert session.last.origin == "local"
    with Serve(tmp_path, address=server.address) as again:
        assert again.address == server.address
        assert session.wait_until_ready(READY_S), session.report()
        check(net, session, 1)
        session.close()


def test_sessions_leave_a_drained_server(net: Net, tmp_path: Path) -> None:
    with Serve(tmp_path) as server, session_of(net, server, policy="offload", hedge="deadline") as session:
        assert session.wait_until_ready(READY_S)
        check(net, session, 0)
        assert server.stop() == 0
        check(net, session, 1)
        assert session.last is not None
        assert session.last.origin == "local"


def test_another_key_is_refused_and_the_robot_goes_on(net: Net, server: Serve, tmp_path: Path) -> None:
    key = tmp_path / "other.key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    with atoll.infer.Session(
        net, (image(0),), server=server.address, key_file=key, profile_seconds=0.05
    ) as session:  # fmt: skip
        eventually(lambda: "key" in session.report()["link"]["refusal"], "the key is refused")
        with pytest.raises(RefusedError, match="copy of the server's key file"):
            session.wait_until_ready(READY_S)
        with pytest.warns(UserWarning, match=r"computes everything alone: .* does not hold this key"):
            check(net, session, 0)


def test_attached_modules_split_their_own_calls(net: Net, server: Serve) -> None:
    atoll.infer.attach(
        net, (image(0),), server=server.address, key_file=server.key_file, policy="offload", hedge="never",
        profile_seconds=0.05,
    )  # fmt: skip
    try:
        found = net(image(5))
    finally:
        atoll.infer.detach(net)
    assert torch.allclose(found["scores"], net(image(5))["scores"], atol=1e-5)


def test_a_second_session_need_not_upload(net: Net, server: Serve) -> None:
    for _ in range(2):
        with session_of(net, server, policy="offload") as session:
            assert session.wait_until_ready(READY_S)
            check(net, session, 2)
    models = server.key_file.parent / "models"
    assert len([path for path in models.iterdir() if path.suffix != ".part"]) == 1
