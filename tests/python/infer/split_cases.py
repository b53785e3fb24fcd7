# SPDX-License-Identifier: Apache-2.0
"""A small model for sessions whose link and server fail, with its expected answers."""

import functools
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import atoll
from atoll.infer import Bundle, capture
from atoll.infer.session import Inference

READY_S = 90  # within which a server that runs becomes usable, however busy the machine is
LIMIT = 20  # seconds of any inference here: far more than it needs, and far less than a hang


class Net(nn.Module):
    """About a millisecond of work, a megabyte of weights, an output with a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 16 * 16, 64)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = self.first(image)
        return {"rows": rows, "scores": self.head(rows.flatten(1))}


@functools.cache
def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()


@functools.cache
def bundle(seed: int = 0) -> Bundle:
    """Returns the model's bundle. Another seed gives another model, which a server does not have yet."""
    return capture(net(seed), torch.zeros(1, 3, 32, 32))


@functools.cache
def case(number: int, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns an input and the model's answer to it."""
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        return image, net(seed)(image)


def session_of(address: str, key_file: Path, seed: int = 0, **options: Any) -> atoll.infer.Session:
    """Opens a session that waits for the server as long as it may still answer."""
    settings = {"policy": "offload", "deadline": 30.0, "profile_seconds": 0.01} | options
    return atoll.infer.Session(bundle(seed), server=address, key_file=key_file, **settings)


def check(session: atoll.infer.Session, number: int = 0, seed: int = 0) -> Inference:
    """Runs one inference, whose answer must be right and in time."""
    image, wanted = case(number % 8, seed)
    found = session(image)
    assert list(found) == list(wanted)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
    last = session.last
    assert last is not None
    assert last.seconds < LIMIT, session.report()
    return last


def until_server(session: atoll.infer.Session, seed: int = 0) -> None:
    """Runs inferences until an answer comes from the server."""
    assert session.wait_until_ready(READY_S), session.report()
    begin = time.monotonic()
    while check(session, seed=seed).origin != "server":
        assert time.monotonic() - begin < READY_S, session.report()
