# SPDX-License-Identifier: Apache-2.0
"""Warnings that name a line of the user's code."""

import os
import sys
import warnings
from pathlib import Path

import torch

_OTHERS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, Path(torch.__file__).parent))


def warn(text: str) -> None:
    """Warns at the line that called Atoll, perhaps through a module of PyTorch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OTHERS):
        frame = frame.f_back
    warnings.warn_explicit(f"atoll: {text}", UserWarning, frame.f_code.co_filename, frame.f_lineno)
