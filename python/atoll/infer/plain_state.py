# SPDX-License-Identifier: Apache-2.0
"""Sets PyTorch's settings of the current thread aside."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _python_dispatch


@contextlib.contextmanager
def plain_state() -> Iterator[None]:
    """Inside the context PyTorch works as on a new thread: without the caller's autocast, inference mode and Python
    modes (such as torch.set_default_device). Settings of the whole process are kept."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_function_modes())
        if torch._C._len_torch_dispatch_stack():  # otherwise only another thread's trace would be disturbed
            stack.enter_context(_python_dispatch._disable_current_modes())
        for left_aside in (torch._C._DisableAutocast(), torch.inference_mode(False)):
            stack.enter_context(left_aside)
        yield


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    modes: list[Any] = []
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
