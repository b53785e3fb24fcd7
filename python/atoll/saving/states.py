# SPDX-License-Identifier: Apache-2.0
"""The state of a training run: plain values without code, the same on all ranks, and each rank's random states."""

import base64
import io
import random
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)


def unwrapped(item: Any) -> Any:
    """Returns the module inside DistributedDataParallel, so that one process can load the state too."""
    return item.module if isinstance(item, DistributedDataParallel) else item


def check_item(name: str, item: Any) -> None:
    """Raises TypeError if `item` has no state to save."""
    if not callable(getattr(item, "state_dict", None)) or not callable(getattr(item, "load_state_dict", None)):
        raise TypeError(
            f"atoll.Checkpointer: {name} is a {type(item).__name__}, which has no state_dict and load_state_dict: pass "
            "models, optimizers, loaders, schedulers and the like"
        )


def check_plain(value: Any, where: str) -> None:
    """Raises TypeError if `value` cannot be loaded again without running code, or differs between ranks. The message
    names `where`."""
    kind = type(value)
    if kind in _VALUES or kind in _TENSORS:
        return
    if kind in (list, tuple, set):
        for place, inner in enumerate(value):
            check_plain(inner, f"{where}[{place}]")
    elif kind in _CONTAINERS:
        for key, inner in value.items():
            check_plain(key, f"a key of {where}")
            check_plain(inner, f"{where}[{key!r}]")
    elif isinstance(value, torch.Tensor):
        raise TypeError(
            f"{where} is a {kind.__name__}, not a whole tensor: atoll.Checkpointer is for models that all ranks hold "
            "whole; save a sharded model with torch.distributed.checkpoint"
        )
    else:
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}: atoll.Checkpointer writes tensors, numbers, strings "
            "and containers of them, and never code; convert it in state_dict"
        )


def check_model(module: nn.Module, state: Any) -> None:
    """Raises ValueError if the state belongs to another model."""
    own = module.state_dict()
    for name in [*own, *state]:
        if name not in own or name not in state:
            raise ValueError(f"{name!r} is only in the {'model' if name in own else 'checkpoint'}")
        ours, its = own[name], state[name]
        if isinstance(ours, torch.Tensor) and isinstance(its, torch.Tensor) and ours.shape != its.shape:
            raise ValueError(f"{name!r} is {list(its.shape)} in the checkpoint, {list(ours.shape)} in the model")


def restore(items: Mapping[str, Any], states: Mapping[str, Any], where: str) -> None:
    """Loads the states into all items; loaders first, because they reject the state of another training run. Raises
    ValueError that names the item and `where` the states are from."""
    if sorted(items) != sorted(states):
        raise ValueError(
            f"{where} holds {', '.join(sorted(states))}, but this training run has {', '.join(sorted(items))}: pass "
            "the same items to atoll.Checkpointer, or use another folder"
        )
    for name, item in items.items():
        if isinstance(item, nn.Module):
            _apply(name, where, check_model, item, states[name])
    for name in sorted(items, key=lambda name: isinstance(items[name], nn.Module | torch.optim.Optimizer)):
        _apply(name, where, items[name].load_state_dict, states[name])


def _apply(name: str, where: str, function: Any, *arguments: Any) -> None:
    try:
        function(*arguments)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{where} does not fit {name}: {error}; restore the original configuration, or use another folder"
        ) from error


def own_random(device: torch.device) -> str:
    """Returns this rank's random states of Python, numpy and PyTorch as text."""
    numpy_state: Any = numpy.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(), "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(numpy_state[1].astype(numpy.int64)), *numpy_state[2:]],
    }  # fmt: skip
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def restore_random(text: str, device: torch.device) -> None:
    state = torch.load(io.BytesIO(base64.b64decode(text)), map_location="cpu", weights_only=True)
    random.setstate(state["python"])
    keys, *rest = state["numpy"]
    numpy.random.set_state(("MT19937", keys.numpy().astype(numpy.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)
