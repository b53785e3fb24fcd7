# SPDX-License-Identifier: Apache-2.0
"""The same training once per group, with stock DDP or stock FSDP2, timed in blocks of steps."""

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from atoll.bench.devices import synchronize


class Training:
    """A multi-layer perceptron per group, with the same initial parameters, the same data, and plain SGD."""

    def __init__(
        self, groups: Mapping[str, dist.ProcessGroup], device: torch.device, kind: str, *, layers: int, width: int,
        batch: int,
    ) -> None:  # fmt: skip
        """`kind` is ddp or fsdp."""
        self.device = device
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, group in groups.items():
            torch.manual_seed(1)
            parts = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
            self.models[name] = _over(group, nn.Sequential(*parts).to(device), kind)
            self.optimizers[name] = torch.optim.SGD(self.models[name].parameters(), lr=1e-4)
        torch.manual_seed(2 + dist.get_rank())
        self.data = torch.randn(batch, width).to(device)

    def block(self, name: str, steps: int) -> float:
        """Returns this rank's seconds for `steps` steps, which all ranks start together."""
        synchronize(self.device)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            loss: torch.Tensor = self.models[name](self.data).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizers[name].step()
            self.optimizers[name].zero_grad()
        synchronize(self.device)
        return time.perf_counter() - begin

    def parameters_differ(self, names: list[str]) -> float:
        """Returns the largest difference between the parameters of two models after the same number of steps, relative
        to the largest parameter."""
        both = [[parameter.detach().cpu() for parameter in self.models[name].parameters()] for name in names]
        differences = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*both, strict=True)]
        return max(differences)


def _over(group: dist.ProcessGroup, model: nn.Sequential, kind: str) -> nn.Module:
    device = next(model.parameters()).device
    if kind == "ddp":
        return DistributedDataParallel(model, process_group=group)
    mesh = DeviceMesh.from_group(group, device.type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)
