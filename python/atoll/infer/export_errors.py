# SPDX-License-Identifier: Apache-2.0
"""Turns failures of torch.export into errors that name the user's own line."""

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from atoll.infer.errors import ExportError

STATELESS = (
    "but a session keeps no state between inferences. Return the new value as an output and take the old one as an "
    "input, or disable the state (transformers' use_cache=False)"
)
BY_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
_PACKAGES = Path(str(torch.__file__)).parent.parent
_OTHERS = (f"{Path(__file__).parent}{os.sep}", *(f"{_PACKAGES / name}{os.sep}" for name in ("torch", "sympy", "numpy")))
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*(?:\n +(.+))?')
_NO_DATA = ("data pointer", "numpy", "Cannot copy out of meta tensor", "is not allocated yet")
_MAX_LETTERS = 400
_CHANGED_CONSTANT = re.compile(r"Constant (?:module\.)?(\S+) is mutated")


def complaint(error: BaseException) -> ExportError:
    """Returns the error to raise for an error from torch.export."""
    chain = list(chain_of(error))
    where = next((line for one in chain if (line := _line_of_traceback(one))), "")
    values = next((one for one in chain if isinstance(one, BY_VALUES) or "data-dependent" in str(one)), None)
    if values is not None:
        return ExportError(
            f"forward branches on a value that is known only when it runs{where}. Compute both branches and "
            f"choose with torch.where, mask instead of selecting so that shapes stay fixed, or make the value a plain "
            f"argument of forward, which is then constant"
        )
    if changed := next((found for one in chain if (found := _CHANGED_CONSTANT.search(str(one)))), None):
        return changes(changed[1])
    said = str(error).strip().partition("\n")[0][:_MAX_LETTERS]
    if any(text in str(one) for one in chain for text in _NO_DATA):
        return ExportError(
            f"forward reads values of a tensor{where}, which has none while it is captured ({said}): "
            f"use torch's functions instead of numpy, tolist() or data_ptr()"
        )
    return ExportError(f"forward cannot be captured{where}: {type(error).__name__}: {said}")


def changes(name: str) -> ExportError:
    """Returns the error to raise if forward changes a tensor of the module."""
    return ExportError(f"forward changes {name} in place, {STATELESS}")


def line_of(node: fx.Node) -> str:
    """Returns the user's line that a node comes from, in parentheses; "" if it is unknown."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    return next((_told(file, number, code) for file, number, code in reversed(frames) if _is_users(file)), "")


def module_of(node: fx.Node) -> str:
    """Returns the path, in the user's module, of the module whose forward calls the node; "" for the user's module."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return re.sub(r"^(?:L\['self'\]\.)?module\.?", "", path)[:_MAX_LETTERS]


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _line_of_traceback(error: BaseException) -> str:
    """Returns the innermost of the user's lines in the traceback, which starts where the error was caught."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return _told(frames[-1].filename, str(frames[-1].lineno), frames[-1].line or "") if frames else ""


def _is_users(file: str) -> bool:
    if file.startswith(("<", *_OTHERS)):
        return False
    return "site-packages" in file or not file.startswith(_STANDARD_LIBRARY)


def _told(file: str, number: str, code: str) -> str:
    return f" ({file}:{number}: {code.strip()})" if code.strip() else f" ({file}:{number})"
