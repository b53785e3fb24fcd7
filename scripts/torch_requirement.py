# SPDX-License-Identifier: Apache-2.0
"""Metadata of the wheel: requires exactly the torch release that it is compiled against (its C++ interface has no
stable ABI). Called by scikit-build-core, inside the Python that builds."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any


def dynamic_metadata(_settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, list[str]]:
    return {"dependencies": [f"torch=={version('torch').partition('+')[0]}"]}


def dynamic_wheel(_settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
