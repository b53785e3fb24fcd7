# SPDX-License-Identifier: Apache-2.0
"""What of the library only tests call: `testing` is the module of tests/pytorch/testing_module.cpp, which is built with
the C++ tests and is not a part of the package."""

import importlib.util
from pathlib import Path
from sysconfig import get_config_var
from typing import Any

from atoll import _C  # noqa: F401 - loads libatoll, which both modules share

FOLDER = Path(__file__).resolve().parents[3] / "build/release/tests"


def _loaded() -> Any:
    path = FOLDER / f"_testing{get_config_var('EXT_SUFFIX')}"
    assert path.exists(), f"{path} is missing: make setup builds it"
    spec = importlib.util.spec_from_file_location("_testing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


testing = _loaded()
