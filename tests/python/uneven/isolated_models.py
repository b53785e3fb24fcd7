# SPDX-License-Identifier: Apache-2.0
"""Models that keep something of each pass, and ways to wrap them."""

import functools
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import atoll
from training import CLASSES, FEATURES

HIDDEN = 8
passes = 0  # of Counting
seen: list[int] = []  # by a hook


class Net(nn.Module):
    """Two layers, with an addition of each kind between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(torch.tanh(self.first(rows))))

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def kept(self) -> Any:
        """Returns what the model has kept of its passes, besides parameters and buffers."""
        return None


class Normalised(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(HIDDEN), nn.Dropout(0.3)

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(rows))


class Spectral(Net):
    """A parametrization, and the older kind that a hook computes."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.first)
        self.between = nn.utils.spectral_norm(nn.Linear(HIDDEN, HIDDEN))

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return self.between(rows)


class WeightNormed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.between = nn.utils.weight_norm(nn.Linear(HIDDEN, HIDDEN))

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return self.between(rows)


class Recurrent(Net):
    """A recurrent model, whose weights are also in a list, and whose state carries over from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(HIDDEN, HIDDEN)
        self.memory: torch.Tensor | None = None

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        out, _ = self.cell(rows[None])
        self.memory = out.detach().mean() if self.memory is None else 0.5 * self.memory + out.detach().mean()
        return out[0] + self.memory

    def kept(self) -> Any:
        return self.memory


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.again.weight = self.first.weight
        self.both = [self.first.weight, {"it": self.first.weight}]

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + (self.both[0] * self.both[1]["it"]).sum(1)


class Counting(Net):
    """A model whose result depends on the number of passes, which is counted in various places of the object."""

    of_class = 0

    def __init__(self) -> None:
        super().__init__()
        self.own, self.held, self.last_ones = 0, {"count": [0], "set": set()}, deque([0.0], 3)
        self.array = numpy.zeros(2)

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        global passes
        passes += 1
        self.own += 1
        self.held["count"][0] += 1
        self.held["set"].add(self.own)
        Counting.of_class += 1
        self.array += 1
        self.last_ones.append(float(rows.detach().mean()))
        return rows * (1 + 0.01 * (passes + self.own + Counting.of_class + len(self.held["set"]) + self.array[0]))

    def kept(self) -> Any:
        return passes, self.own, self.held, Counting.of_class, list(self.last_ones), self.array.tolist()


class Drawing(Net):
    """Draws random numbers from its own generators and others."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(1)
        self.python, self.numpy = random.Random(2), numpy.random.default_rng(3)

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(rows.shape, generator=self.torch, dtype=rows.dtype)
        return rows + noise * (self.python.random() + self.numpy.random() + random.random() + numpy.random.rand())

    def kept(self) -> Any:
        return self.torch.get_state(), self.python.getstate(), self.numpy.bit_generator.state


class Writing(Net):
    """Writes to parameters, buffers and other tensors, in place and by replacing them."""

    def __init__(self) -> None:
        super().__init__()
        self.shadow = nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)
        self.online = nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("longest", torch.zeros(0))
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.bank = torch.zeros(3, HIDDEN)

    @torch.no_grad()
    def _write(self, rows: torch.Tensor) -> None:
        self.shadow.weight.mul_(0.9).add_(self.online.weight, alpha=0.1)
        self.shadow.bias.data = 0.9 * self.shadow.bias.data + 0.1
        self.first.bias.data.clamp_(-0.05, 0.05)
        self.longest.resize_(len(self.longest) + 1).fill_(1.0)
        self.mean = 0.9 * self.mean + 0.1 * rows.mean(0)
        self.bank[0] += rows.mean(0)

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        self._write(rows)
        return self.online(rows) + self.shadow(rows) + self.bank[0] + self.longest.sum() - self.mean

    def kept(self) -> Any:
        return self.bank, [name for name, _ in self.named_buffers()]


class Checkpointed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def inner(self, rows: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda given: self.drop(given).sin(), rows, use_reentrant=False)


class Hooked(Net):
    """A model with an average in a hook's closure, and hooks on modules, parameters and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.average = average = {"weight": torch.zeros(HIDDEN, FEATURES, dtype=torch.float64), "count": 0}
        self.calls: list[str] = []

        def follow(module: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
            average["weight"].lerp_(module.weight.detach().to_local() if hasattr(module.weight, "to_local")
                                    else module.weight.detach(), 0.5)  # fmt: skip
            average["count"] += 1
            seen.append(average["count"])
            return result * (1 + 0.01 * average["count"])

        self.first.register_forward_hook(follow)
        self.last.register_full_backward_hook(functools.partial(self._note, "backward"))
        self.last.weight.register_hook(functools.partial(self._note, "tensor"))
        self.last.bias.register_post_accumulate_grad_hook(functools.partial(self._note, "accumulated"))

    def _note(self, what: str, *given: Any) -> None:
        self.calls.append(what)

    def kept(self) -> Any:
        return self.average, self.calls, list(seen)


KINDS: list[type[Net]] = [Normalised, Spectral, WeightNormed, Recurrent, Tied, Counting, Drawing, Writing, Checkpointed,
                          Hooked]  # fmt: skip
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, foreach=False)


class InBackward:
    """Updates each parameter as soon as its gradient is there, so that `step` has nothing to do."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            update = torch.optim.SGD([parameter], lr=0.05)
            parameter.register_post_accumulate_grad_hook(functools.partial(self._step, update))

    @staticmethod
    def _step(update: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
        update.step()
        update.zero_grad()

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...


def ddp(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda net: DistributedDataParallel(net, **options)


def with_fp16_hook(net: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(net)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return wrapped


def synchronised(net: nn.Module) -> nn.Module:
    return DistributedDataParallel(atoll.training.convert_batch_norm(net))


def compiled(net: nn.Module) -> nn.Module:
    return DistributedDataParallel(torch.compile(net, backend="aot_eager"))


def sharded(net: nn.Module) -> nn.Module:
    fully_shard(net.last)
    return fully_shard(net)


def over_replicas(net: nn.Module) -> nn.Module:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(net, mesh=mesh)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": ddp(), "static": ddp(static_graph=True), "unused": ddp(find_unused_parameters=True),
    "views": ddp(gradient_as_bucket_view=True, bucket_cap_mb=0.001), "fp16": with_fp16_hook,
    "synchronised": synchronised, "sharded": sharded, "compiled": compiled,
}  # fmt: skip
