# SPDX-License-Identifier: Apache-2.0
"""The wheel built from a clean copy of the sources works in an environment that holds nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("build", "dist", "site", ".venv", ".git", ".*_cache", "__pycache__", ".hypothesis")

ALL_REDUCE = """
import torch, torch.distributed as dist
import torch.multiprocessing as processes
import atoll.sim

def rank(number, store):
    dist.init_process_group("atoll", init_method=f"file://{store}", rank=number, world_size=2)
    tensor = torch.full((1000,), float(number + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(3).all()
    assert torch.ones(3, device="sim").sum().item() == 3
    dist.destroy_process_group()

if __name__ == "__main__":
    import sys
    processes.spawn(rank, args=(sys.argv[1],), nprocs=2)
    print("both ranks agree")
"""


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.verify
def test_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=IGNORED)
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ".", folder=source)
    (wheel,) = (tmp_path / "dist").glob("atoll-*.whl")

    run(sys.executable, "-m", "venv", tmp_path / "empty", folder=tmp_path)
    python = tmp_path / "empty/bin/python"
    run(python, *pip, "install", wheel, folder=tmp_path)
    assert "torch 2.13.0" in " ".join(run(tmp_path / "empty/bin/atoll", "info", folder=tmp_path).split())

    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    assert "both ranks agree" in run(python, script, tmp_path / "store", folder=tmp_path)
