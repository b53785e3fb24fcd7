# SPDX-License-Identifier: Apache-2.0
"""One forward and backward pass, as in the training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

Forward = Callable[[nn.Module, Any], torch.Tensor]


def default_forward(model: nn.Module, batch: Any) -> torch.Tensor:
    """Returns a scalar whose gradient reaches every parameter that the output depends on. If the batch is a list or
    tuple, its first element is the input; a dictionary is passed as keywords (as for transformers' models)."""
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
            "no output of the model has a gradient: pass Settings(forward=...), a function of model and batch that "
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
    """Returns the module inside DistributedDataParallel, whose ranks would wait for each other."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def computes_alone(model: nn.Module) -> bool:
    """Returns whether a forward and backward pass inside `without_trace` works without other ranks."""
    return not any(isinstance(module, FSDPModule | nn.SyncBatchNorm) for module in model.modules())
