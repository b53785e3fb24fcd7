# SPDX-License-Identifier: Apache-2.0
"""The kinds of errors, by what the caller does next, and warnings that name a line of the user's code."""

import os
import sys
import warnings
from pathlib import Path

import torch

_OTHERS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, Path(torch.__file__).parent))


class ExportError(ValueError):
    """The model or its example cannot be captured: change what the message names."""


class InputError(ValueError):
    """The inputs of an inference differ from the example: pass inputs like it, or make another session for these.
    `argument` is the one that differs, such as batch['mask']; "" if it is none in particular."""

    def __init__(self, text: str, argument: str = "") -> None:
        super().__init__(text)
        self.argument = argument


class BundleError(ValueError):
    """The files of a bundle are damaged, incomplete or not from Atoll: export or copy them again."""


class ModelChangedError(RuntimeError):
    """The module has changed since it was captured: capture it again, or make a new session."""


class RefusedError(RuntimeError):
    """The server refuses to run this model for this robot, and retrying does not help: change what the message
    names."""


def warn(text: str) -> None:
    """Warns at the line that called Atoll, perhaps through a module of PyTorch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OTHERS):
        frame = frame.f_back
    warnings.warn_explicit(f"atoll: {text}", UserWarning, frame.f_code.co_filename, frame.f_lineno)
