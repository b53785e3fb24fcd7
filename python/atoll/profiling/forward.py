# SPDX-License-Identifier: Apache-2.0
"""One forward and backward pass as the training would make it, without a trace of it afterwards."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.batch_norm import SyncBatchNorm

Forward = Callable[[nn.Module, Any], torch.Tensor]


def default_forward(model: nn.Module, batch: Any) -> torch.Tensor:
    """A scalar whose gradient reaches every parameter that the output depends on. Of a batch that is a list or tuple
    the first element is the input, a dictionary is given as keywords (as transformers' models take it)."""
    if isinstance(batch, dict):
        output = model(**batch)
    else:
        output = model(batch[0] if isinstance(batch, list | tuple) else batch)
    return _summed(output)


def _summed(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.float().square().mean()
    values = output.values() if isinstance(output, dict) else output
    parts = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    if not parts:
        raise ValueError(
            "no output of the model has a gradient: give Settings(forward=...), a function of model and batch that "
            "returns the loss"
        )
    return torch.stack([_summed(part) for part in parts]).sum()


def to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def unwrapped(model: nn.Module) -> nn.Module:
    """Without DistributedDataParallel: its ranks would wait for each other."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def computes_alone(model: nn.Module) -> bool:
    """Whether a forward and backward pass inside `without_trace` needs no other rank."""
    return not any(isinstance(module, FSDPModule | nn.SyncBatchNorm) for module in model.modules())


@contextlib.contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """What is drawn inside from the generators of PyTorch, numpy and Python does not change what comes afterwards."""
    devices = [] if device.type == "cpu" else [device]
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


@contextlib.contextmanager
def without_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Gradients, buffers (running statistics) and random states are afterwards what they were. Meanwhile Atoll's
    SyncBatchNorm normalises over this rank's samples."""
    norms = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(module, name, buffer, None if buffer is None else buffer.clone())
               for module in model.modules() for name, buffer in module._buffers.items()]  # fmt: skip
    with same_random_numbers(device):
        for parameter, _ in gradients:
            parameter.grad = None
        for norm in norms:
            norm.is_alone = True
        try:
            yield
        finally:
            for norm in norms:
                norm.is_alone = False
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for module, name, buffer, value in buffers:
                    module._buffers[name] = buffer  # a forward pass may have put another one there
                    if buffer is not None and value is not None:
                        buffer.copy_(value)
