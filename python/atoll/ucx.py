# SPDX-License-Identifier: Apache-2.0
"""Loads UCX from a wheel (libucx-cu12, libucx-cu13); the system's own UCX is found without it."""

import contextlib
import os
from pathlib import Path

_RDMA_DEVICES = Path("/sys/class/infiniband")


def bring() -> None:
    """Loads the wheel's UCX, if one is installed and links could use it, so that Atoll's library finds it. If UCX is
    requested but not found, the first group reports it."""
    choice = os.environ.get("ATOLL_TRANSPORT") or "auto"
    if choice == "ucx" or (choice == "auto" and _has_rdma()):
        with contextlib.suppress(ImportError, OSError):
            from libucx import load_library  # type: ignore[import-not-found, unused-ignore]

            load_library()


def _has_rdma() -> bool:
    try:
        return any(_RDMA_DEVICES.iterdir())
    except OSError:
        return False
