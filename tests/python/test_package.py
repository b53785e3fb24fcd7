# SPDX-License-Identifier: Apache-2.0
"""The installed package: the library without PyTorch, the glue, the command, the version check."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest

from atoll._variables import unknown
from atoll._version_check import FROM_SOURCE, mismatch

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_LIBRARIES = {
    "libc", "libm", "libgcc_s", "libstdc++", "libpthread", "librt", "libcrypto", "libssl", "ld-linux-x86-64",
    "ld-linux-aarch64",
}  # fmt: skip


def package_folder() -> Path:
    spec = importlib.util.find_spec("atoll")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def dynamic_section(library: Path) -> str:
    return subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> set[str]:
    return {name.partition(".so")[0] for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic_section(library))}


def glue() -> Path:
    (found,) = package_folder().glob("_C.*.so")
    return found


def test_libatoll_needs_the_system_only() -> None:
    assert needed(package_folder() / "libatoll.so") <= SYSTEM_LIBRARIES


def test_libatoll_exports_its_namespace_only() -> None:
    command = ["nm", "--dynamic", "--defined-only", "--demangle", package_folder() / "libatoll.so"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    prefix = r"((typeinfo( name)?|vtable|VTT|guard variable) for |(virtual|non-virtual) thunk to )?atl::"
    assert any("atl::collectives::Group" in name for name in names)
    assert [name for name in names if not re.match(prefix, name)] == []


def test_glue_finds_libatoll_beside_itself() -> None:
    assert "libatoll" in needed(glue())
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic_section(glue())) == ["$ORIGIN"]


def test_requirements_name_the_torch_of_the_build() -> None:
    from atoll._build_info import TORCH_VERSION

    assert f"torch=={TORCH_VERSION}" in (requires("atoll") or [])
    assert mismatch(TORCH_VERSION, version("torch")) is None


@pytest.mark.parametrize("installed", ["2.11.0", "2.11.0+cu130"])
def test_requirement_follows_the_torch_that_builds(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = runpy.run_path(str(ROOT / "scripts/torch_requirement.py"))["dynamic_metadata"]
    monkeypatch.setitem(provider.__globals__, "version", {"torch": installed}.__getitem__)
    assert provider({}, {}) == {"dependencies": ["torch==2.11.0"]}


def test_an_import_is_quick_because_it_loads_next_to_nothing() -> None:
    """The import loads neither the library nor any package that torch has not loaded; everything else is loaded when
    it is used."""
    script = "import sys, torch; before = set(sys.modules); import atoll; print(*sorted(set(sys.modules) - before))"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # which would otherwise import it with torch
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True, env=environment
    )
    assert done.stdout.split() == ["atoll", "atoll._autoload", "atoll._build_info", "atoll._version_check"]


def test_entry_points() -> None:
    for group in ("torch.backends", "torch.distributed.backends"):
        points = entry_points(group=group, name="atoll")
        assert [point.value for point in points] == ["atoll._autoload:register"]
    assert [point.value for point in entry_points(group="console_scripts", name="atoll")] == ["atoll.cli:main"]


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_equal_releases_agree(found: str) -> None:
    assert mismatch("2.13.0", found) is None


@pytest.mark.parametrize("found", ["2.12.1", "2.13.1", "2.13.0.dev20260101", "2.14.0+cpu"])
def test_other_releases_are_refused_with_the_way_out(found: str) -> None:
    problem = mismatch("2.13.0", found)
    assert problem is not None
    assert problem.startswith(f"atoll was built for torch 2.13.0, found {found}: pip install torch==2.13.0, or rebuild")
    assert problem.endswith(f" in its source folder: {FROM_SOURCE}")


PRETEND_ANOTHER_TORCH = """
import importlib.metadata
real = importlib.metadata.version
importlib.metadata.version = lambda name: "1.0.0" if name == "torch" else real(name)
"""
TORCH_FIRST = """
import torch  # the entry point runs here
assert torch.ones(2).sum() == 2
import torch.distributed as dist
try:
    dist.init_process_group("atoll", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print("refused:", error)
"""
ATOLL_FIRST = """
try:
    import atoll
except ImportError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("script", [TORCH_FIRST, ATOLL_FIRST], ids=["torch_first", "atoll_first"])
def test_a_wrong_torch_refuses_atoll_and_leaves_torch_usable(script: str) -> None:
    command = [sys.executable, "-c", PRETEND_ANOTHER_TORCH + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused: atoll was built for torch" in done.stdout
    assert "found 1.0.0" in done.stdout


def test_command_line() -> None:
    command = [sys.executable, "-m", "atoll.cli"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=100, check=True).stdout
    assert shown.strip() == f"atoll {version('atoll')}"
    info = subprocess.run([*command, "info"], capture_output=True, text=True, timeout=100, check=True).stdout
    assert re.search(r"^library +/\S+/libatoll\.so$", info, re.MULTILINE), info
    assert version("torch") in info


def test_variables_that_do_not_exist() -> None:
    names = ["ATOLL_TRANSPORT", "ATOLL_TRANSPORTS", "ATOLL_SIM_SPEDE", "ATOLL_ZZZ", "PATH"]
    assert unknown(names) == {
        "ATOLL_SIM_SPEDE": "ATOLL_SIM_SPEED",
        "ATOLL_TRANSPORTS": "ATOLL_TRANSPORT",
        "ATOLL_ZZZ": "",
    }
