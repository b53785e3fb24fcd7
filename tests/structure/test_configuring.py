# SPDX-License-Identifier: Apache-2.0
"""Errors of the CMake configuration name what is missing and what to type."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(part VERSION 0.1.0 LANGUAGES CXX)
list(PREPEND CMAKE_MODULE_PATH {folder}/cmake)
include({part})
"""


def refusal(part: str, folder: Path, *settings: str) -> str:
    """Returns the error, as one line, of a project that consists of this file of cmake/."""
    assert CMAKE is not None
    (folder / "CMakeLists.txt").write_text(PROJECT.format(folder=ROOT, part=part))
    environment = {name: value for name, value in os.environ.items() if name != "ATOLL_DEPS_DIR"}
    done = subprocess.run(
        [CMAKE, "-S", folder, "-B", folder / "build", *(f"-D{setting}" for setting in settings)],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return " ".join(done.stderr.split())


def test_all_packages_that_are_missing_are_named(tmp_path: Path) -> None:
    """With an empty ATOLL_DEPS_DIR, on a system without any of them."""
    (tmp_path / "none").mkdir()
    hidden = ["OpenSSL", "spdlog", "nlohmann_json"]
    paths = ["FLATBUFFERS_INCLUDE_DIR", "FLATBUFFERS_COMPILER", "XXHASH_INCLUDE_DIR"]
    paths += ["ZSTD_INCLUDE_DIR", "ZSTD_LIBRARY", "ATOLL_JPEG_INCLUDE", "ATOLL_JPEG_CONFIG", "ATOLL_JPEG_LIBRARY"]
    paths += ["ATOLL_SECCOMP_INCLUDE", "ATOLL_SECCOMP_LIBRARY"]
    settings = [f"CMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in hidden] + [f"{name}=" for name in paths]
    said = refusal("AtollDependencies", tmp_path, f"ATOLL_DEPS_DIR={tmp_path / 'none'}", *settings)
    missing = ", ".join([f"{name}_FOUND" for name in hidden] + paths)
    assert f"Missing: {missing}. Install Debian's libssl-dev libspdlog-dev" in said
    packages = said.partition("Install Debian's ")[2].partition(",")[0].split()
    listed = (ROOT / "scripts/debian-packages.txt").read_text().splitlines()
    assert {f"{name} build" for name in packages} <= {" ".join(line.split()) for line in listed}
    assert said.partition(f"{packages[-1]}, ")[2].startswith("or set ATOLL_DEPS_DIR to a prefix that holds them")


def test_one_package_is_missing(tmp_path: Path) -> None:
    said = refusal("AtollDependencies", tmp_path, "XXHASH_INCLUDE_DIR=")
    assert "Missing: XXHASH_INCLUDE_DIR. Install Debian's libxxhash-dev, or set ATOLL_DEPS_DIR to a prefix" in said


def test_torch_is_missing(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty/bin/python"
    said = refusal("AtollPython", tmp_path, f"Python_EXECUTABLE={python}")
    wanted = (
        f"The PyTorch glue needs torch in the Python that builds ({python}): pip install torch==2.13.0, or configure"
    )
    assert f"{wanted} with -DATOLL_PYTORCH=OFF" in said
