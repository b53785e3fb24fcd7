# SPDX-License-Identifier: Apache-2.0
"""On which devices a model and its results are, and a session computes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from atoll.infer.bundle import Bundle
from atoll.infer.errors import ExportError
from atoll.infer.plain_state import plain_state

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Place:
    """Of a module that was captured: where its weights are, and each of its output tensors."""

    module: torch.device
    outputs: Sequence[torch.device]


def device_for(model: Any, example: Any = ()) -> torch.device:
    """Where a session computes that is given no device: where the model's weights are, or the example where it has
    none; the CPU for a folder. ExportError where they are on several devices."""
    if isinstance(model, Bundle):
        return model.place.module if model.place is not None else _CPU
    if not isinstance(model, nn.Module):
        return _CPU
    found = _devices([*model.parameters(), *model.buffers()]) or _devices(_tensors(example))
    if len(found) > 1:
        names = " and ".join(sorted(map(str, found)))
        raise ExportError(f"the model lies on {names}: move it to one device, or say on which it runs by device=")
    return next(iter(found), _CPU)


def moved(outputs: list[torch.Tensor], place: Place | None) -> list[torch.Tensor]:
    """The outputs where the module leaves them; as they are where no module is known."""
    if place is None:
        return outputs
    with torch._C.DisableTorchFunction():  # of the caller's modes
        if all(each.device == device for each, device in zip(outputs, place.outputs, strict=True)):
            return outputs
    with plain_state():
        return [each.to(device) for each, device in zip(outputs, place.outputs, strict=True)]


def _devices(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    return {tensor.device for tensor in tensors if tensor.device.type != "meta"}


def _tensors(example: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor)]
