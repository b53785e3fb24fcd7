# SPDX-License-Identifier: Apache-2.0
"""Sends a training's state from one rank to all others of a group: tensors as they are, the rest in a form that
torch.load accepts with weights_only, so that no foreign code is executed."""

import io
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from atoll.loading.exchange import Exchange

_TENSOR = "a tensor of atoll.ElasticTrainer"


def split(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns `value` with its tensors replaced by descriptions, and adds the tensors to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {_TENSOR: (list(value.shape), value.dtype, value.device.type != "cpu")}
    if isinstance(value, Mapping):
        return {key: split(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(split(item, tensors) for item in value)
    return value


def join(plain: Any, device: torch.device, tensors: list[torch.Tensor]) -> Any:
    """Reverses split(): makes the tensors, without values, on `device` if they were on one, and lists them."""
    if isinstance(plain, dict):
        if _TENSOR in plain:
            shape, dtype, on_device = plain[_TENSOR]
            tensors.append(torch.empty(shape, dtype=dtype, device=device if on_device else "cpu"))
            return tensors[-1]
        return {key: join(item, device, tensors) for key, item in plain.items()}
    if type(plain) in (list, tuple):
        return type(plain)(join(item, device, tensors) for item in plain)
    return plain


def share_tensors(tensors: list[torch.Tensor], source: int, exchange: Exchange) -> None:
    """Copies the source's values to all ranks, bit for bit, in place."""
    for values in (tensor.detach() for tensor in tensors if tensor.numel()):
        flat = values.contiguous().to(exchange.device)
        dist.broadcast(flat.reshape(-1).view(torch.uint8), source, group=exchange.group)
        if exchange.rank != source and flat.data_ptr() != values.data_ptr():
            values.copy_(flat)


def _saved(plain: Any) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(plain, file)
    torch.load(io.BytesIO(file.getvalue()), weights_only=True)  # raises here what the other ranks would raise
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def share(value: Any, source: int, exchange: Exchange) -> Any:
    """Returns the source's value on every rank. Collective. Raises ValueError on all ranks for a value that cannot be
    saved, or that holds more than plain values and tensors."""
    tensors: list[torch.Tensor] = []
    text, problem = torch.zeros(0, dtype=torch.uint8), ""
    if exchange.rank == source:
        try:
            text = _saved(split(value, tensors))
        except Exception as error:
            problem = f"the state of the training cannot be sent to other ranks: {error}"
    exchange.refuse(problem)
    size = int(exchange.numbers([float(text.numel())])[source][0])
    if exchange.rank != source:
        text = torch.empty(size, dtype=torch.uint8)
    share_tensors([text], source, exchange)
    if exchange.rank != source:
        plain = torch.load(io.BytesIO(bytes(text.tolist())), weights_only=True)
        value = join(plain, exchange.device, tensors)
    share_tensors(tensors, source, exchange)
    return value
