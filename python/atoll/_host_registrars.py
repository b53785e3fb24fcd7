# SPDX-License-Identifier: Apache-2.0
"""The functions with which vendors' runtimes register host memory, by vendor: see Vendor.host_registrar."""

import ctypes
import importlib

import torch


def _functions_of(library: str, add: str, remove: str) -> tuple[int, int] | None:
    """Returns the addresses of two functions of a runtime that PyTorch has loaded; None if they are not there."""
    try:
        runtime = ctypes.CDLL(library)
        functions = getattr(runtime, add), getattr(runtime, remove)
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return addresses[0], addresses[1]


def cuda() -> tuple[int, int] | None:
    major = (torch.version.cuda or "").partition(".")[0]
    return _functions_of(f"libcudart.so.{major}", "cudaHostRegister", "cudaHostUnregister")


def rocm() -> tuple[int, int] | None:
    major = (torch.version.hip or "").partition(".")[0]
    return _functions_of(f"libamdhip64.so.{major}", "hipHostRegister", "hipHostUnregister")


def sim() -> tuple[int, int]:
    registrar: tuple[int, int] = importlib.import_module("atoll._sim").host_registrar()
    return registrar
