# SPDX-License-Identifier: Apache-2.0
"""A robot's own engine for a session: an AOTInductor package, or any callable with the model's signature."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from atoll.infer.bundle import Bundle

Engine = str | os.PathLike[str] | Callable[..., Any]
_running = threading.local()


def check_engine(engine: Engine | None) -> None:
    """Raises ValueError for a missing file and for an object that is not callable."""
    if isinstance(engine, str | os.PathLike):
        if not Path(engine).exists():
            raise ValueError(
                f"engine {os.fspath(engine)} does not exist: give a package from "
                f"torch._inductor.aoti_compile_and_package, or a callable"
            )
    elif engine is not None and not callable(engine):
        raise ValueError(f"engine is a {type(engine).__name__}: give the path of a package, or a callable")


def engine_of(engine: Engine | None, bundle: Bundle) -> "str | _Called | None":
    """Returns the engine as _C.InferSession takes it. `engine` has been checked."""
    if engine is None or isinstance(engine, str | os.PathLike):
        return None if engine is None else os.fspath(engine)
    return _Called(engine, bundle)


def example_of(example: Any, kwargs: Mapping[str, Any] | None, bundle: Bundle) -> list[torch.Tensor]:
    """Returns the tensors of the inputs that the model was captured with; an empty list if there are none."""
    if example is None and not kwargs:
        return []
    args = () if example is None else example if isinstance(example, tuple) else (example,)
    return bundle.check_inputs(args, kwargs)


def is_inside_engine() -> bool:
    """Returns whether this call comes from an engine, whose computation must not be split again."""
    return getattr(_running, "is_inside", False)


class _Called:
    """Calls the engine with lists of tensors in the graph's order, and returns such a list."""

    def __init__(self, engine: Callable[..., Any], bundle: Bundle) -> None:
        self._engine, self._bundle = engine, bundle

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = self._bundle.inputs.call(tensors)
        _running.is_inside = True
        try:
            with torch.no_grad():
                answer = self._engine(*args, **kwargs)
        finally:
            _running.is_inside = False
        return self._bundle.output.tensors_of(answer, "the answer")
