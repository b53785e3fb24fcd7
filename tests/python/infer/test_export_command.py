# SPDX-License-Identifier: Apache-2.0
"""`atoll export`: its output and files, and the errors of wrong calls."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from atoll.cli import app
from atoll.infer import Bundle, run_graph

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        torch.nn.init.ones_(self.layer.weight)  # so that relu lets something through

    def forward(self, x, scale=1.0):
        return {"y": torch.relu(self.layer(x)) * scale}

def one():
    return Net().eval(), torch.ones(2, 4)

def named():
    return Net().eval(), {"x": torch.ones(3, 4), "scale": 2.0}

class Branches(Net):
    def forward(self, x):
        return super().forward(x, 1.0 if torch.compiler.is_compiling() else 2.0)

def branches():
    return Branches().eval(), torch.ones(2, 4)

def training():
    return Net(), torch.ones(2, 4)

def alone():
    return Net().eval()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "export_me.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def export(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["export", *arguments], env=environment, catch_exceptions=False)


def test_what_is_printed_and_written(folder: Path) -> None:
    result = export("export_me:one", "out")
    assert result.exit_code == 0, result.output
    (path,) = (folder / "out").iterdir()
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "inputs x: float32 [2, 4]" in lines
    assert "outputs output['y']: float32 [2, 4]" in lines
    assert any(line.startswith("operators 3: ") and "linear 1" in line for line in lines)
    assert "weights 2 tensors, 0.000 MiB" in lines
    assert f"hash {path.name}" in lines
    assert lines[-1] == f"Atoll: written to out/{path.name}"
    bundle = Bundle.load(path)
    assert set(bundle.output.build(run_graph(bundle, [torch.ones(2, 4)]))) == {"y"}


def test_named_inputs(folder: Path) -> None:
    assert export("export_me:named", "out").exit_code == 0
    (path,) = (folder / "out").iterdir()
    assert Bundle.load(path).check_inputs((torch.ones(3, 4), 2.0))[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("model", "output", "message"),
    [
        ("export_me", "out", "'export_me': give MODULE:FUNCTION, such as my_models:vgg"),
        ("no_such_module:one", "out", "no_such_module:one was not found from"),
        ("export_me:two", "out", "export_me:two was not found from"),
        ("export_me:alone", "out", "export_me:alone returns a Net: return (model, inputs)"),
        ("export_me:training", "out", "export_me:training: the model is in training mode: call eval() first"),
        (
            "export_me:branches",
            "out",
            "the captured graph does not compute what the model computes: output['y'] is off by 0.5",
        ),
        ("export_me:one", "export_me.py", "export_me.py cannot be written: "),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_calls(model: str, output: str, message: str) -> None:
    result = export(model, output)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
