# SPDX-License-Identifier: Apache-2.0
"""Sessions with an engine of the robot's own, which answers only if it is right and faster."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.infer import Session
from atoll.infer.engine import engine_of

FAST = {"profile_seconds": 0.0}
SIZE = 192


class Slow(nn.Module):
    """A slow model that returns exactly twice its input, wherever it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("eye", torch.eye(SIZE))
        self.weight = nn.Parameter(torch.full((SIZE,), 2.0))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(60):
            x = x @ self.eye
        return {"y": x * self.weight}


def quick(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": x * 2}


@pytest.fixture
def net() -> nn.Module:
    return Slow().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def test_it_answers(net: nn.Module, x: torch.Tensor) -> None:
    with Session(net, (x,), engine=quick, **FAST) as session:
        assert torch.equal(session(x)["y"], x * 2)
        assert torch.equal(session(-x)["y"], x * -2)
        report = session.report()
    assert report["engine"]["state"] == "used"
    assert report["engine"]["runs"] == 2
    assert report["engine"]["deviation"] == 0
    assert "engine: used" in str(report)


def test_without_one_nothing_is_said(net: nn.Module, x: torch.Tensor) -> None:
    with Session(net, (x,), **FAST) as session:
        assert session.report()["engine"]["state"] == "none"
        assert "engine" not in str(session.report())


def test_one_that_is_slower_is_not_used(net: nn.Module, x: torch.Tensor) -> None:
    def slower(x: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(4):
            net(x)
        return quick(x)

    with Session(net, (x,), engine=slower, **FAST) as session:
        assert torch.equal(session(x)["y"], x * 2)
        assert session.report()["engine"]["state"] == "slower"
        assert session.report()["engine"]["runs"] == 0


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (lambda x: {"y": x * 2.2}, r"output 0 deviates by 0\.0909.* 0\.0001 is allowed"),
        (lambda x: {"y": x[:5] * 2}, r"output 0 is float32 \[5, 192\], but the model's is float32 \[192, 192\]"),
        (lambda x: {"y": x.double() * 2}, r"output 0 is float64 \[192, 192\]"),
        (lambda x: x * 2, "the answer is a tensor"),
        (lambda x: {"y": None}, "the answer"),
        (lambda: {"y": None}, "takes 0 positional arguments"),
        (lambda x: 1 / 0, "does not accept the model's inputs: .*ZeroDivisionError"),
        (3, "engine is a int: give the path of a package, or a callable"),
        ("no/such.pt2", "engine no/such.pt2 does not exist"),
    ],
)
def test_wrong_ones_are_refused(net: nn.Module, x: torch.Tensor, engine: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(net, (x,), engine=engine, **FAST)


def test_a_file_that_is_no_package(net: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_text("not a package")
    with pytest.raises(ValueError, match=f"the package {path}"):
        Session(net, (x,), engine=path, **FAST)


def test_what_is_allowed_can_be_said(net: nn.Module, x: torch.Tensor) -> None:
    def near(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * 2.02}

    with Session(net, (x,), engine=near, engine_tolerance=0.02, **FAST) as session:
        assert torch.equal(session(x)["y"], x * 2.02)
        assert session.report()["engine"]["deviation"] == pytest.approx(0.02 / 2.02, rel=1e-3)
    with pytest.raises(ValueError, match="engine_tolerance is 2"):
        Session(net, (x,), engine=near, engine_tolerance=2, **FAST)


class Faulty:
    """Fast and right until it is told to fail."""

    def __init__(self) -> None:
        self.does: Callable[[torch.Tensor], Any] = lambda x: None

    def __call__(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.does(x)
        return quick(x)


def test_where_it_raises_the_model_answers(net: nn.Module, x: torch.Tensor) -> None:
    engine = Faulty()

    def raises(_: torch.Tensor) -> None:
        raise RuntimeError("the accelerator is hot")

    with Session(net, (x,), engine=engine, **FAST) as session:
        engine.does = raises
        for _ in range(4):
            assert torch.equal(session(x)["y"], x * 2)
        report = session.report()["engine"]
        assert report["state"] == "given up"
        assert report["failures"] == 3
        assert "the accelerator is hot" in report["text"]
        assert "it failed 3 times" in str(session.report())


def test_where_it_stalls_the_model_answers(net: nn.Module, x: torch.Tensor) -> None:
    engine, gate = Faulty(), threading.Event()
    with Session(net, (x,), engine=engine, **FAST) as session:
        engine.does = lambda _: gate.wait(60)
        try:
            for _ in range(3):
                assert torch.equal(session(x)["y"], x * 2)
            assert session.report()["engine"]["late"] == 1
            assert session.report()["engine"]["state"] == "stalled"
        finally:
            gate.set()


def test_one_that_stalls_at_the_beginning(net: nn.Module, x: torch.Tensor) -> None:
    engine, gate = Faulty(), threading.Event()
    engine.does = lambda _: gate.wait(60)
    try:
        with pytest.raises(RuntimeError, match=r"has not answered within 0\.2 s"):
            Session(net, (x,), engine=engine, engine_start_limit=0.2, **FAST)
    finally:
        gate.set()


def test_what_it_does_to_its_inputs_is_its_own_affair(net: nn.Module, x: torch.Tensor) -> None:
    kept: list[torch.Tensor] = []

    def spoils(x: torch.Tensor) -> dict[str, torch.Tensor]:
        answer = x * 2
        x.zero_()
        kept.append(answer)
        return {"y": answer}

    before = x.clone()
    with Session(net, (x,), engine=spoils, **FAST) as session:
        answer = session(x)["y"]
        kept[-1].zero_()  # like an engine that reuses its memory
        assert torch.equal(answer, before * 2)
        assert torch.equal(x, before)


def test_the_example_is_compared_as_well(net: nn.Module, x: torch.Tensor) -> None:
    def wrong_for_it(other: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": other * (3 if torch.equal(other, x) else 2)}

    with pytest.raises(ValueError, match="deviates"):
        Session(net, (x,), engine=wrong_for_it, **FAST)
    with Session(net, (x + 1,), engine=wrong_for_it, **FAST) as session:
        assert session.report()["engine"]["state"] == "used"


def test_attached_modules_may_be_part_of_it(net: nn.Module, x: torch.Tensor) -> None:
    session = atoll.infer.attach(net, (x,), engine=quick, **FAST)
    try:
        assert torch.equal(net(x)["y"], x * 2)
        assert session.report()["engine"]["runs"] == 1
        taken = engine_of(net, session.bundle)
        assert callable(taken)
        assert torch.equal(taken([x])[0], x * 2)
        assert session.report()["inferences"] == 1, "an engine's call of the module was split again"
    finally:
        atoll.infer.detach(net)


class Chain(nn.Module):
    """Many small steps, which a compiler fuses into one."""

    def __init__(self, factor: float = 1.001) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor, scale: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(40):
            x = x + 0.02 * torch.sin(3 * self.factor * x) + 0.01 * scale
        return x, x > 0.8


def package_of(module: nn.Module, x: torch.Tensor, path: Path) -> Path:
    from torch._inductor import aoti_compile_and_package

    return Path(aoti_compile_and_package(torch.export.export(module, (x,)), package_path=str(path)))


@pytest.mark.verify
def test_packages_of_aotinductor(tmp_path: Path) -> None:
    net, x = Chain().eval(), torch.randn(300, 400, generator=torch.Generator().manual_seed(2))
    package = package_of(net, x, tmp_path / "chain.pt2")
    with Session(net, (x,), engine=package, **FAST) as session:
        for scale in (1, -2):
            with torch.no_grad():
                wanted = net(x * scale)
            found = session(x * scale)
            torch.testing.assert_close(found[0], wanted[0])
            assert (found[1] != wanted[1]).float().mean() < 1e-3
        report = session.report()["engine"]
        assert report["state"] == "used"
        assert report["runs"] == 2
        assert report["deviation"] < 1e-4
    with pytest.raises(ValueError, match="does not accept the model's inputs"):
        Session(net, (x[:200],), engine=package, **FAST)
    with pytest.raises(ValueError, match="does not accept the model's inputs"):
        Session(Chain().double().eval(), (x.double(),), engine=package, **FAST)
    with pytest.raises(ValueError, match="output 0 deviates by"):
        Session(Chain(1.01).eval(), (x,), engine=package, **FAST)


ENDS_WHILE_IT_STALLS = """
import time
import torch
from atoll.infer import Session
from test_engine import FAST, SIZE, Slow, quick

stalls = False

def engine(x):
    while stalls:
        time.sleep(0.001)
    return quick(x)

x = torch.ones(SIZE, SIZE)
session = Session(Slow().eval(), (x,), engine=engine, **FAST)
stalls = True
assert torch.equal(session(x)["y"], x * 2)
"""


def test_a_program_ends_while_it_stalls() -> None:
    command = [sys.executable, "-c", ENDS_WHILE_IT_STALLS]
    ended = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
