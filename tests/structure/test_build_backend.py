# SPDX-License-Identifier: Apache-2.0
"""`pip install .` builds for the torch of the environment, although pip hides it from builds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scikit_build_core

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ASKED = """
import build_backend, json, os, subprocess, sys
asked = build_backend.get_requires_for_build_wheel()
look = "import importlib.util as u; found = u.find_spec('torch'); print(found and found.submodule_search_locations[0])"
words = [sys.executable, "-c", look]
seen = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
print(json.dumps([[each for each in asked if each.startswith("torch")], os.path.realpath(seen)]))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv/bin/python"


def put_torch(python: Path, version: str) -> Path:
    """Installs a torch that consists of its name and version only."""
    (site,) = python.parents[1].glob("lib/*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").touch()
    described = site / f"torch-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return site / "torch"


def ask(python: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs the backend as pip does: the environment's packages are removed from every path, and what the build
    requires is in a folder."""
    (tmp_path / "hides").mkdir()
    hide = f"import sys; sys.path[:] = [each for each in sys.path if not each.startswith({str(python.parents[1])!r})]\n"
    (tmp_path / "hides/sitecustomize.py").write_text(hide)
    (tmp_path / "required").mkdir()
    installed = Path(scikit_build_core.__file__).parents[1]
    for name in ("scikit_build_core", "packaging", "pathspec"):
        for path in installed.glob(f"{name}*"):
            (tmp_path / "required" / path.name).symlink_to(path)
    folders = (tmp_path / "hides", tmp_path / "required", SCRIPTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run(
        [python, "-c", ASKED], cwd=SCRIPTS.parent, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["2.14.1", "2.14.1+cu130", "2.11.0", "2.16.0.dev20261101"])
def test_the_torch_that_is_there_is_used(version: str, python: Path, tmp_path: Path) -> None:
    expected = put_torch(python, version)
    done = ask(python, tmp_path)
    assert json.loads(done.stdout.splitlines()[-1]) == [[], str(expected.resolve())], done.stderr


def test_without_one_it_is_that_of_setup(python: Path, tmp_path: Path) -> None:
    done = ask(python, tmp_path)
    asked, seen = json.loads(done.stdout.splitlines()[-1])
    assert (len(asked), seen) == (1, str(SCRIPTS.parent / "None")), done.stderr
    assert asked[0] in (SCRIPTS.parent / "requirements.txt").read_text().splitlines()


def test_one_that_is_too_old_is_named(python: Path, tmp_path: Path) -> None:
    put_torch(python, "2.9.1+cpu")
    done = ask(python, tmp_path)
    assert done.returncode != 0
    assert "Atoll builds for torch 2.11.0 and newer" in done.stderr
    assert "2.9.1+cpu: pip install torch==2." in done.stderr
