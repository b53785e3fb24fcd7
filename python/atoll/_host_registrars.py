# SPDX-License-Identifier: Apache-2.0
"""The addresses of functions of vendors' runtimes, by vendor: see Vendor.host_registrar and Vendor.capture_mode."""

import ctypes
import importlib
import os

import torch


def _address_of(library: str, name: str) -> int:
    """Returns the address of a function of a runtime that PyTorch has loaded; 0 if it is not there."""
    try:
        runtime = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def _functions_of(library: str, *names: str) -> tuple[int, int, int] | None:
    add, remove, clear = (_address_of(library, name) for name in names)
    return (add, remove, clear) if add and remove and clear else None


def _cuda_runtime() -> str:
    return f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}"


def _rocm_runtime() -> str:
    return f"libamdhip64.so.{(torch.version.hip or '').partition('.')[0]}"


def cuda() -> tuple[int, int, int] | None:
    return _functions_of(_cuda_runtime(), "cudaHostRegister", "cudaHostUnregister", "cudaGetLastError")


def cuda_capture_mode() -> int:
    return _address_of(_cuda_runtime(), "cudaThreadExchangeStreamCaptureMode")


def rocm() -> tuple[int, int, int] | None:
    return _functions_of(_rocm_runtime(), "hipHostRegister", "hipHostUnregister", "hipGetLastError")


def rocm_capture_mode() -> int:
    return _address_of(_rocm_runtime(), "hipThreadExchangeStreamCaptureMode")


def sim() -> tuple[int, int, int]:
    add, remove = importlib.import_module("atoll._sim").host_registrar()
    return add, remove, 0


def sim_capture_mode() -> int:
    address: int = importlib.import_module("atoll._sim").capture_mode_function()
    return address
