# SPDX-License-Identifier: Apache-2.0
"""Lossy packing at the user's request: its effect on tensors and answers, and what is reported about it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atoll.infer import Session, packing_loss
from serving import Serve
from split_cases import READY_S


def picture(dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Returns a picture with a different slope for each colour."""
    rows, columns = torch.arange(96).reshape(1, 96, 1), torch.arange(128).reshape(1, 1, 128)
    colours = torch.arange(3).reshape(3, 1, 1)
    pixels = rows + columns + 10 * colours
    return (pixels if dtype is torch.uint8 else pixels / 255).to(dtype)[None]


@pytest.mark.parametrize(
    ("tensor", "codec", "most_bytes", "most_error"),
    [
        (picture(), "jpeg", 10_000, 0.1),
        (picture()[0].permute(1, 2, 0).contiguous(), "jpeg", 10_000, 0.1),
        (picture()[:, :1], "jpeg", 5_000, 0.1),
        (picture(torch.float32), "jpeg", 10_000, 0.1),
        (picture(torch.float64), "jpeg", 10_000, 0.1),
        (torch.randn(50, 40, generator=torch.Generator().manual_seed(1)), "half", 4_000, 2**-11),
        (torch.randn(1, 5, 400, generator=torch.Generator().manual_seed(1)), "int8", 2_020, 1 / 254 + 1e-6),
    ],
)
def test_what_a_codec_would_do(tensor: torch.Tensor, codec: str, most_bytes: int, most_error: float) -> None:
    loss = packing_loss(tensor, codec)
    assert loss.codec == codec
    assert loss.packed_bytes <= most_bytes
    assert 0 < loss.largest_error <= most_error
    assert 0 < loss.mean_error < loss.largest_error


def test_tensors_that_it_does_not_suit_stay_as_they_are() -> None:
    unfit = [(torch.randn(50, 40), "jpeg"), (torch.zeros(1, 3, 4, 4), "jpeg"), (torch.ones(9).int(), "half")]
    for tensor, codec in unfit:
        loss = packing_loss(tensor, codec)
        assert loss.codec == "raw"
        assert loss.packed_bytes == tensor.nbytes
        assert loss.largest_error == 0
    with pytest.raises(ValueError, match="give half, int8 or jpeg"):
        packing_loss(picture(), "png")


class Mean(nn.Module):
    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = image.float() / 255
        return {"means": x.mean((2, 3)), "half": nn.functional.avg_pool2d(x, 2)}


class Rows(nn.Module):
    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (values * mask).sum(1)


def test_jpeg_is_for_models_with_pictures() -> None:
    with pytest.raises(ValueError, match=r"none of the model's inputs is one \(float32 \[20, 30\], bool \[20, 30\]\)"):
        Session(Rows().eval(), (torch.ones(20, 30), torch.ones(20, 30).bool()), lossy="jpeg", profile_seconds=0.0)


def ask(server: Serve, lossy: str | None) -> tuple[dict[str, torch.Tensor], Any, int]:
    settings: dict[str, Any] = {"policy": "offload", "hedge": "never", "profile_seconds": 0.0}
    with Session(
        Mean().eval(), (picture(),), server=server.address, key_file=server.key_file, lossy=lossy, **settings
    ) as session:
        assert session.wait_until_ready(READY_S), session.report()
        answer = session(picture())
        assert session.last is not None
        assert session.last.origin == "server"
        return answer, session.report(), session.last.up_bytes


def test_pictures_go_to_the_server_as_jpeg(tmp_path: Path) -> None:
    wanted = Mean()(picture())
    with Serve(tmp_path) as server:
        answer, report, sent = ask(server, "jpeg")
        assert sent < picture().nbytes / 3
        assert report["lossy"]["codec"] == "jpeg"
        assert report["lossy"]["measured"] == 1
        assert 0 < report["lossy"]["mean_error"] < report["lossy"]["largest_error"] < 0.2
        assert "jpeg: sent values differ by" in str(report)
        for name, tensor in wanted.items():
            torch.testing.assert_close(answer[name], tensor, atol=0.05, rtol=0)
        assert not torch.equal(answer["half"], wanted["half"])
        exact, report, _ = ask(server, None)
        assert report["lossy"] == {"codec": "raw", "measured": 0, "largest_error": 0.0, "mean_error": 0.0}
        for name, tensor in wanted.items():
            torch.testing.assert_close(exact[name], tensor)
