# SPDX-License-Identifier: Apache-2.0
"""Lets PyTorch's distributed_test take simulated devices for CUDA's: its tests say "cuda" where they mean the
accelerator."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Tests that cannot run on simulated devices, by the name that Atoll stands in for; each for a reason.
NOT_RUN: dict[str, dict[str, str]] = {
    "gloo": {},
    "nccl": {},
}


def as_sim(device: Any) -> Any:
    """The simulated device where a CUDA device is meant; everything else as it is."""
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("sim") if device.index is None else torch.device("sim", device.index)
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "sim" + device.removeprefix("cuda")
    return device


class CudaMeansSim(TorchFunctionMode):
    """Inside, calls that name a CUDA device get a simulated one."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: as_sim(value) for name, value in (kwargs or {}).items()}
        if function is torch.Tensor.cuda:
            tensor, *rest = args
            index = kwargs.pop("device", rest[0] if rest else None)
            where = f"sim:{index}" if isinstance(index, int) else as_sim(index) or "sim"
            return tensor.to(where, non_blocking=kwargs.get("non_blocking", False))
        return function(*map(as_sim, args), **kwargs)


class Stand(ModuleType):
    """`torch` as the tests see it: with the simulated device's module as `torch.cuda`, and devices made of it."""

    def __init__(self) -> None:
        super().__init__("torch")
        names = {name: getattr(torch.sim, name) for name in dir(torch.sim) if not name.startswith("__")}
        self.cuda = SimpleNamespace(**names, amp=torch.cuda.amp)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def prepare(name: str) -> None:
    """Before distributed_test is used: the group "gloo" or "nccl" has CPUs and simulated devices, and the tests'
    conditions find accelerators."""
    import torch.distributed.distributed_c10d as c10d
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    import atoll.sim  # noqa: F401

    c10d.Backend.backend_capability[name] = ["cpu", "sim"]
    stand = Stand()
    distributed_test.torch = stand
    common_distributed.torch = stand
    common_distributed.TEST_CUDA = True


def on_sim(body: Callable[[], None], rank: int) -> None:
    torch.sim.set_device(rank)
    with CudaMeansSim():
        body()
    torch.sim.synchronize()
