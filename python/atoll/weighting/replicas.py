# SPDX-License-Identifier: Apache-2.0
"""Checks that ranks still hold the same model. The optimizers of different devices round differently, and nothing
corrects that: DistributedDataParallel sends parameters only once, at the start."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ROW = 64  # words of a large parameter whose order does not matter


@dataclass(frozen=True)
class Replicas:
    """The replicas of a model's parameters, as seen by one rank."""

    part: int
    """Ranks with the same number hold the same parameters."""
    group: dist.ProcessGroup
    """The group of these ranks."""


def sharded_layers(model: nn.Module) -> list[tuple[FSDPModule, Any]]:
    """Returns the layers that fully_shard or `replicate` has wrapped, each with its FSDPParamGroup."""
    layers = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [(layer, group) for layer in layers if (group := layer._get_fsdp_state()._fsdp_param_group) is not None]


def replicas_of(model: nn.Module | None) -> Replicas | None:
    """Returns the replicas of DistributedDataParallel, of fully_shard over a mesh with replicas, and of `replicate`.
    None for other models, and if no two ranks hold the same parameters."""
    if isinstance(model, DistributedDataParallel):
        return Replicas(0, model.process_group)
    found = [group.mesh_info for _, group in sharded_layers(model)] if model is not None else []
    groups = {id(getattr(info, "replicate_process_group", None)) for info in found}
    if len(groups) != 1 or not hasattr(found[0], "replicate_process_group"):
        return None
    return Replicas(getattr(found[0], "shard_mesh_rank", 0), found[0].replicate_process_group)


def held(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters that this rank holds, except those that DistributedDataParallel was told to ignore."""
    ignored = model.parameters_to_ignore if isinstance(model, DistributedDataParallel) else set()
    module = model.module if isinstance(model, DistributedDataParallel) else model
    for name, parameter in module.named_parameters():
        if name not in ignored:
            yield from ((name, plain) for plain in _plain(parameter.detach()) if not plain.is_meta and plain.numel())


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for inner in (getattr(tensor, name) for name in names):
        if isinstance(inner, torch.Tensor):
            yield from _plain(inner)


@torch.no_grad()
def checksum(model: nn.Module) -> int:
    """Returns 48 bits that are equal for equal bits in all parameters of this rank, on any devices. Reads each
    parameter once, and waits for each device once."""
    own = [parameter for _, parameter in held(model)]
    try:
        total = _total(own)
    except torch.OutOfMemoryError:  # it needs a sixty-fourth of a parameter
        total = _total([parameter.cpu() for parameter in own])
    return (total ^ total >> 48) & ((1 << 48) - 1)


def _total(parameters: list[torch.Tensor]) -> int:
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for place, parameter in enumerate(parameters):
        by_device.setdefault(parameter.device, []).append(_sum_of_bits(parameter) * (2 * place + 1))
    total = sum(int(torch.stack(sums).sum().cpu()) for sums in by_device.values())
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)  # wrapped around, as on a single device


def _sum_of_bits(values: torch.Tensor) -> torch.Tensor:
    """Returns a sum of bits that depends on positions: of words in a small parameter, of rows in a large one."""
    flat = values.contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    words = flat.view(_BITS[size] if flat.nbytes % 8 else torch.int64)  # several values at once if they fill words
    rows = len(words) // ROW if len(words) > ROW * ROW else 0
    rest = words[rows * ROW :].to(torch.int64)
    total = (rest * _weights(rest)).sum()
    if rows:
        sums = words[: rows * ROW].view(rows, ROW).sum(1, dtype=torch.int64)
        total = total + (sums * _weights(sums)).sum()
    return total


def _weights(sums: torch.Tensor) -> torch.Tensor:
    return (2 * torch.arange(len(sums), device=sums.device) + 1) * 0x9E3779B97F4A7C1


def replica_difference(model: nn.Module, group: dist.ProcessGroup | None = None) -> float:
    """Returns the largest difference between ranks in any parameter, relative to the largest finite parameter; 0 if all
    hold the same, infinite if one is not finite on some ranks only. Collective: two reductions of the model's size."""
    return largest_difference(model, group)[0]


@torch.no_grad()
def largest_difference(model: nn.Module, group: dist.ProcessGroup | None = None) -> tuple[float, str]:
    """Returns the same as `replica_difference`, and the name of the parameter."""
    largest, difference, where = 0.0, 0.0, ""
    for name, own in held(model):
        # A reduction may lose NaN, and a difference to NaN cannot be computed.
        high = own.masked_fill(own.isnan(), math.inf) if own.is_floating_point() else own.clone()
        low = high.clone()
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        own_difference = float((high - low).masked_fill(high == low, 0).max())
        if own_difference > difference:
            difference, where = own_difference, name
        largest = max(largest, _largest(high), _largest(low))
    if math.isinf(difference):
        return difference, where
    return (difference / largest if largest else 0.0), where


def _largest(values: torch.Tensor) -> float:
    return float(values.masked_fill(values.isinf(), 0).abs().max())


@torch.no_grad()
def align_replicas(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Copies the parameters of the group's first rank to all ranks. Collective."""
    replicas = replicas_of(model)
    for _, own in held(model):
        dist.broadcast(own, group_src=0, group=group or (replicas.group if replicas else None))
