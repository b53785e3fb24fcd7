# SPDX-License-Identifier: Apache-2.0
"""The example of a C++ client, built against the files of `cmake --install`, runs a model."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll.infer

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "release"


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_the_example_is_built_and_runs(tmp_path: Path) -> None:
    if not (BUILD / "cmake_install.cmake").is_file():
        pytest.skip("build/release is missing: make setup")
    run("cmake", "--install", BUILD, "--component", "devel", "--prefix", tmp_path / "atoll")
    example = ROOT / "examples" / "cpp_client"
    run("cmake", "-S", example, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'atoll'}",
        f"-DPython3_EXECUTABLE={sys.executable}")  # fmt: skip
    run("cmake", "--build", tmp_path / "build")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)).eval()
    folder = atoll.infer.capture(net, torch.randn(1, 3, 8, 8)).save(tmp_path)
    lines = run(tmp_path / "build" / "client", folder).splitlines()
    assert len(lines) == 10
    assert all(line.startswith("local (plan local): 20 bytes") for line in lines)
