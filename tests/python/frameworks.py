# SPDX-License-Identifier: Apache-2.0
"""The environment build/frameworks, which `make verify` has in addition to .venv, and its packages."""

import importlib.metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ROOT / "build/frameworks"


def pinned(package: str) -> str:
    lines = (ROOT / "requirements-verify.txt").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{package}=="))
    return line


def skip_without(package: str) -> None:
    """Skips the test unless the package is in build/frameworks in its pinned version."""
    folders = [str(folder) for folder in FRAMEWORKS.glob("lib/python*/site-packages")]
    found = {f"{package}=={each.version}" for each in importlib.metadata.distributions(name=package, path=folders)}
    if pinned(package) not in found:
        pytest.skip(f"{pinned(package)} is not in build/frameworks: python3 scripts/setup.py --packages verify")
