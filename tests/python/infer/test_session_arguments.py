# SPDX-License-Identifier: Apache-2.0
"""Invalid arguments of a session are refused before anything takes long, with clear errors."""

from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.infer import Session

FAST = {"profile_seconds": 0.0}


def test_options_are_checked_before_the_model_is_looked_at(tmp_path: Path) -> None:
    class Untouched(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it is captured")

    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o600)
    for wrong, message in (
        ({"policy": "best"}, "is not known"),
        ({"hedge": "sometimes"}, "is not known"),
        ({"lossy": "png"}, "is not known"),
        ({"deadline": "soon"}, "deadline is 'soon': give a number"),
        ({"patiense": 1}, "no setting"),
        ({"device": "toaster"}, '"toaster" is not a device'),
        ({"engine": 3}, "engine is a int"),
        ({"engine": tmp_path / "none.pt2"}, "does not exist"),
        ({"prometheus": "9400"}, "give a port from 0 to 65535"),
        ({"server": "http://10.0.0.2:4700", "key_file": key}, "is a URL, not an address; expected HOST:PORT"),
        ({"server": "10.0.0.2", "key_file": key}, "has no port"),
        ({"server": ("10.0.0.2", 4700), "key_file": key}, "give a text"),
    ):
        with pytest.raises(ValueError, match=message):
            Session(Untouched().eval(), (torch.ones(1),), **{**FAST, **wrong})


def test_a_single_tensor_is_one_argument() -> None:
    x = torch.ones(2, 3)
    with Session(nn.ReLU().eval(), (x,), **FAST) as session:
        assert torch.equal(session.run(x), x)  # type: ignore[arg-type]


def test_times_are_numbers() -> None:
    x = torch.ones(2)
    with Session(nn.ReLU().eval(), (x,), **FAST) as session:
        for nothing in ("1", [1.0], torch.ones(1)):
            with pytest.raises(ValueError, match=r"deadline is .*: give seconds"):
                session.run((x,), deadline=nothing)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"seconds is .*: give a number"):
                session.wait_until_ready(nothing)  # type: ignore[arg-type]
