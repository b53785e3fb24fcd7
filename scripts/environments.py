# SPDX-License-Identifier: Apache-2.0
"""Environments with other releases of PyTorch, under build/matrix: one for each release in releases.toml, with a Python
that this machine has."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import BUILD, ROOT
from releases import Release

FOLDER = BUILD / "matrix"
LIBRARY = BUILD / "release/src/atoll/libatoll.so"  # of `make setup`
NEEDED = {
    "numpy", "typer", "rich", "plotly", "tensorboard", "prometheus_client", "scikit-build-core", "cmake", "ninja",
    "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest", "safetensors", "scikit-learn",
    "transformers",
}  # fmt: skip


def interpreter(release: Release, python: str = "") -> tuple[str, str] | None:
    """Returns a Python of this machine for which the release has a wheel, and its version: first the table's choice,
    then the running one, then any. With `python` only that version is considered."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    order = [python] if python else [release.tried, own, *release.pythons]
    wanted = [name for name in order if name in release.pythons]
    return next(((found, name) for name in wanted if (found := python_of(name))), None)


def python_of(name: str) -> str:
    """Returns the path of a Python of this version that starts, or ""."""
    own = Path(sys.base_prefix, "bin", f"python{name}")
    others = sorted(Path(sys.base_prefix).parent.glob(f"{name}.*/bin/python{name}"))
    for path in [str(own) if own.exists() else None, shutil.which(f"python{name}"), *map(str, others)]:
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return ""


def pins() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in NEEDED]


def run(words: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None, limit: float = 3600) -> int:
    """Runs a command with its output in the log; returns the exit status."""
    with log.open("ab") as output:
        try:
            return subprocess.run([str(word) for word in words], cwd=ROOT, env=environment, stdout=output,
                                  stderr=subprocess.STDOUT, check=False, timeout=limit).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {limit} s\n".encode())
            return 124


def installed(release: Release, found: tuple[str, str], log: Path) -> Path | None:
    """Returns the Python of an environment for the release and this interpreter; None if pip cannot install the
    release."""
    python, version = found
    folder = FOLDER / f"{release.torch}-py{version}"
    own = folder / "bin/python"
    stamp = folder / "installed"
    wanted = "\n".join([f"torch=={release.torch}", *pins()])
    if stamp.is_file() and stamp.read_text() == wanted:
        return own
    if run([python, "-m", "venv", "--clear", folder], log) != 0:
        return None
    words = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *wanted.splitlines()]
    # A machine may have a limit of its own on what is installed; the table says which release it is.
    if run(words, log) != 0 and run(words, log, {**os.environ, "PIP_CONFIG_FILE": os.devnull}) != 0:
        return None
    stamp.write_text(wanted)
    return own
