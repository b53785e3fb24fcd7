# SPDX-License-Identifier: Apache-2.0
"""Public modules that load what they offer on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes_from(where: Mapping[str, str], module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of `module`, which offers each name of `where` from the module that
    defines it."""

    def get(name: str) -> Any:
        if name in where:
            return getattr(import_module(where[name]), name)
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return get, lambda: sorted(where)
