# SPDX-License-Identifier: Apache-2.0
"""The backend of `pip install .`: scikit-build-core, with the torch of the environment that Atoll is installed into.

pip builds in an environment of its own, which would hold another torch than the user's. So the backend looks for the
user's torch with the same Python and uses it in place; if there is none, it requires the release of `make setup`."""

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scikit_build_core import build as core
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

from releases import releases

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel", "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip

Settings = dict[str, Any] | None
# -E: without the path by which pip's environment hides the user's.
_PROBE = """import importlib.metadata, importlib.util
found = importlib.util.find_spec("torch")
print(found.submodule_search_locations[0] if found else "")
print(importlib.metadata.distribution("torch")._path if found else "")"""
_shown = tempfile.TemporaryDirectory(prefix="atoll-torch-")  # until this process ends


def _show_users_torch() -> bool:
    """Links the environment's torch, and nothing else of the environment, into a folder in which this process and the
    build's programs look, because pip removes the environment's own folder from every path. Returns whether there is a
    torch."""
    done = subprocess.run([sys.executable, "-E", "-c", _PROBE], cwd="/", capture_output=True, text=True, check=False)
    for path in done.stdout.split("\n"):
        if path:
            Path(_shown.name, os.path.basename(path)).symlink_to(path)
    if not any(Path(_shown.name).iterdir()):
        return False
    sys.path.append(_shown.name)
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([old] if old else []), _shown.name])
    return True


def _see_torch() -> bool:
    """Lets this process and the build's programs import the environment's torch. Returns whether there is one."""
    if find_spec("torch") is None and not _show_users_torch():
        return False
    _require_release(metadata.version("torch"))
    return True


def _require_release(found: str) -> None:
    known = [release.torch for release in releases()]
    if tuple(map(int, found.split(".")[:2])) < tuple(map(int, known[0].split(".")[:2])):
        usual = next(release.torch for release in releases() if release.is_setup)
        raise SystemExit(
            f"Atoll builds for torch {known[0]} and newer, and {sys.prefix} holds {found}: pip install torch=={usual}"
        )


def _with_torch(requirements: list[str]) -> list[str]:
    if _see_torch():
        return requirements
    return [*requirements, *(f"torch=={release.torch}" for release in releases() if release.is_setup)]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _with_torch(core.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _with_torch(core.get_requires_for_build_editable(config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    _see_torch()
    return core.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    _see_torch()
    return core.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    _see_torch()
    return core.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _see_torch()
    return core.build_editable(wheel_directory, config_settings, metadata_directory)
