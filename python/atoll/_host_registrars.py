# SPDX-License-Identifier: Apache-2.0
"""The functions with which vendors' runtimes register host memory, by vendor: see Vendor.host_registrar."""

import ctypes
import importlib
import os

import torch


def _functions_of(library: str, *names: str) -> tuple[int, int, int] | None:
    """Returns the addresses of functions of a runtime that PyTorch has loaded; None if they are not there."""
    try:
        runtime = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        add, remove, clear = (ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0 for name in names)
    except (OSError, AttributeError):
        return None
    return add, remove, clear


def cuda() -> tuple[int, int, int] | None:
    major = (torch.version.cuda or "").partition(".")[0]
    return _functions_of(f"libcudart.so.{major}", "cudaHostRegister", "cudaHostUnregister", "cudaGetLastError")


def rocm() -> tuple[int, int, int] | None:
    major = (torch.version.hip or "").partition(".")[0]
    return _functions_of(f"libamdhip64.so.{major}", "hipHostRegister", "hipHostUnregister", "hipGetLastError")


def sim() -> tuple[int, int, int]:
    add, remove = importlib.import_module("atoll._sim").host_registrar()
    return add, remove, 0
