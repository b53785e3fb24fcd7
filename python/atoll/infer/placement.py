# SPDX-License-Identifier: Apache-2.0
"""The devices that hold a model and its results, and on which a session computes."""

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
    """The devices of a captured module: of its weights, and of each output tensor."""

    module: torch.device
    outputs: Sequence[torch.device]


def device_for(model: Any, example: Any = ()) -> torch.device:
    """Returns the default device of a session: that of the model's weights, or of the example if it has no weights; the
    CPU for a folder. Raises ExportError if they are on several devices."""
    if isinstance(model, Bundle):
        return model.place.module if model.place is not None else _CPU
    if not isinstance(model, nn.Module):
        return _CPU
    found = _devices([*model.parameters(), *model.buffers()]) or _devices(_tensors(example))
    if len(found) > 1:
        names = " and ".join(sorted(map(str, found)))
        raise ExportError(f"the model is on {names}: move it to one device, or choose the device with device=")
    return next(iter(found), _CPU)


def moved(outputs: list[torch.Tensor], place: Place | None) -> list[torch.Tensor]:
    """Moves the outputs to the devices where the module leaves them; unchanged if the module is unknown."""
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
