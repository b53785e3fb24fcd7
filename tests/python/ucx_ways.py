# SPDX-License-Identifier: Apache-2.0
"""Shared by tests over UCX links."""

import os
import subprocess
import sys

import pytest

ABSENT = ("this build of Atoll has no UCX", "ATOLL_TRANSPORT=ucx: UCX cannot be loaded")
ASKS_FOR_UCX = """
import atoll
import torch.distributed as dist
dist.init_process_group("atoll", store=dist.HashStore(), rank=0, world_size=1)
"""
# The transports that UCX may use, and those that the link then reports.
WAYS = {"posix,sysv,cma,self": ("posix", "sysv"), "tcp,self": ("tcp",)}


def over_ucx(ways: str, **more: str) -> dict[str, str]:
    """Returns the environment of ranks whose links use `ways`."""
    return {"ATOLL_TRANSPORT": "ucx", "ATOLL_ADDRESS": "127.0.0.1", "UCX_TLS": ways, **more}


def skip_without_ucx() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS_FOR_UCX], env={**os.environ, "ATOLL_TRANSPORT": "ucx"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode and any(words in done.stderr for words in ABSENT):
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
