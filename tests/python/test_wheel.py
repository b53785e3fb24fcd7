# SPDX-License-Identifier: Apache-2.0
"""The wheel of `make wheel` works in an empty environment, and its metadata states what it needs."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TORCH = {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"}  # comes with the required torch
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / "scripts/wheel.py", "--only", "2.13.0", "--output", folder, folder=ROOT)
    (archive,), (wheel,) = folder.glob("atoll-*.tar.gz"), folder.glob("atoll-*.whl")
    return archive, wheel


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("wheel")  # the wheel is built once
def test_wheel_works_in_an_empty_environment(made: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "empty", folder=tmp_path)
    python = tmp_path / "empty/bin/python"
    run(python, *PIP, "install", made[1], folder=tmp_path)
    assert "torch 2.13.0" in " ".join(run(tmp_path / "empty/bin/atoll", "info", folder=tmp_path).split())

    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    assert "both ranks agree" in run(python, script, tmp_path / "store", folder=tmp_path)


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("wheel")  # the wheel is built once
def test_the_tag_is_what_auditwheel_finds(made: tuple[Path, Path], tmp_path: Path) -> None:
    """The tag follows from the versions of its symbols; only PyTorch's libraries are missing for it."""
    wheel = made[1]
    tag = re.search(r"-cp3\d+-cp3\d+-(.*)\.whl$", wheel.name)
    assert tag is not None
    found = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel, folder=tmp_path))
    assert found["sym_tag"] in tag[1].split(".")
    assert found["sym_tag"].startswith("manylinux_2_")
    assert not any(found[problem] for problem in ("pyfpe", "ucs2", "unsupported_isa"))
    assert set(found["external_libs"]) <= TORCH
    hindered = found["policy_upgrades"].get(found["sym_tag"], {})
    assert "blacklisted_symbols" not in hindered
    assert set(hindered.get("libs_to_eliminate", ())) <= TORCH


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("wheel")  # the wheel is built once
def test_all_that_is_needed_is_inside(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Except PyTorch's own libraries, and those that every Linux has."""
    wheel = made[1]
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
        assert any("/LICENSE" in name for name in packed.namelist())
    inside = {path.name for path in tmp_path.rglob("*.so*")}
    system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libpthread.so.0"}
    system |= {"libdl.so.2", "librt.so.1", "ld-linux-aarch64.so.1"}
    for path in [*tmp_path.rglob("*.so*"), tmp_path / "atoll/atoll_infer_worker"]:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path, folder=tmp_path)))
        assert needed <= inside | TORCH | system, f"{path.name}: {needed - inside - TORCH - system}"


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("wheel")  # the wheel is built once
def test_the_archive_holds_the_sources_and_no_more(made: tuple[Path, Path]) -> None:
    with tarfile.open(made[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "src/atoll/core/error.h"} <= names
    assert not [name for name in names if name.startswith((".venv", "build", "dist", "site", ".git/"))]
    assert os.path.getsize(made[0]) < 20e6
