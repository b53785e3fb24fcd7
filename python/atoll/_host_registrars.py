# SPDX-License-Identifier: Apache-2.0
"""The functions with which vendors' runtimes register host memory, by vendor: see Vendor.host_registrar."""

import ctypes
import importlib
import os

import torch


def _functions_of(library: str, version: str | None, prefix: str) -> tuple[int, int, int] | None:
    """Returns the addresses of functions of a runtime that PyTorch has loaded; None if they are not there."""
    names = (f"{prefix}HostRegister", f"{prefix}HostUnregister", f"{prefix}GetLastError")
    try:
        path = f"{library}.so.{(version or '').partition('.')[0]}"
        runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        add, remove, clear = (ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0 for name in names)
    except (OSError, AttributeError):
        return None
    return add, remove, clear


def cuda() -> tuple[int, int, int] | None:
    return _functions_of("libcudart", torch.version.cuda, "cuda")


def rocm() -> tuple[int, int, int] | None:
    return _functions_of("libamdhip64", torch.version.hip, "hip")


def sim() -> tuple[int, int, int]:
    add, remove = importlib.import_module("atoll._sim").host_registrar()
    return add, remove, 0
