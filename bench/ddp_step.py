# SPDX-License-Identifier: Apache-2.0
"""Training steps of DistributedDataParallel with and without communication, timed."""

import contextlib
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class DdpSteps:
    """The same multi-layer perceptron once per backend, each in stock DDP with stock settings."""

    def __init__(self, groups: Mapping[str, dist.ProcessGroup], layers: int, width: int) -> None:
        self.groups = groups
        self.width = width
        self.models: dict[str, DistributedDataParallel] = {}
        for name, group in groups.items():
            torch.manual_seed(1)
            parts = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
            self.models[name] = DistributedDataParallel(nn.Sequential(*parts), process_group=group)
        self.parameter_bytes = 4 * layers * width * width

    def step(self, backend: str, batch: int, communicate: bool) -> dict[str, float]:
        """Returns this rank's seconds; the caller takes the slowest rank's."""
        model = self.models[backend]
        data = torch.ones(batch, self.width)
        model.zero_grad(set_to_none=False)
        dist.barrier(group=self.groups[backend])
        begin = time.perf_counter()
        with contextlib.nullcontext() if communicate else model.no_sync():
            loss = model(data).sum()
            middle = time.perf_counter()
            loss.backward()
        end = time.perf_counter()
        return {"step_s": end - begin, "backward_s": end - middle}

    def bucket_bytes(self, backend: str) -> list[int]:
        """Returns the sizes in the order in which buckets become ready, as DDP rebuilt them after its first step."""
        facts = self.models[backend]._get_ddp_logging_data()
        sizes = facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]
        return [int(size) for size in sizes.split(",")]
