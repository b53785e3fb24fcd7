# SPDX-License-Identifier: Apache-2.0
"""A backend without communication: a rank copies what it would receive from its own memory, and never waits."""

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

NAME = "nothing"


def _create(settings: Any, options: Any) -> Any:
    return FakeProcessGroup._create_internal(settings.group_rank, settings.group_size, options)


def register(device: str) -> None:
    """Makes `new_group(backend="nothing")` work for tensors on the CPU and on `device`; once per process."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=sorted({"cpu", device}))
