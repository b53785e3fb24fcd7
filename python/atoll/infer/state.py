# SPDX-License-Identifier: Apache-2.0
"""The state of a module's layers besides parameters, to detect whether a call leaves something behind. torch.export
only warns of that, and does not see it in the layers of a module."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils import _pytree as pytree

from atoll.infer.errors import ExportError
from atoll.infer.hooks import weights_of_hooks

_NOT_STATE = {"_parameters", "_buffers", "_modules"}  # of a layer's own attributes


@contextlib.contextmanager
def refuse_state(module: nn.Module) -> Iterator[None]:
    """Raises ExportError if an attribute of a layer holds another tensor after the call inside than before. Changes of
    a tensor's values show in the graph instead."""
    before = _held_tensors(module)
    yield
    now = _held_tensors(module)
    parameters = set(map(id, module.parameters()))  # recurrent layers also hold them as attributes
    changed = (name for name in [*now, *before] if now.get(name) is not before.get(name))
    for name in (name for name in changed if id(now.get(name)) not in parameters):
        raise ExportError(
            f"forward stores a tensor in {name}, but a session keeps no state between inferences. Return it as an "
            f"output and take it as an input, or disable the state; for a cache that is filled once, call the model "
            f"before the export"
        )


def _held_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors by the layer and attribute that hold them."""
    found = {}
    for path, child in module.named_modules():
        left_out = _NOT_STATE.union(weights_of_hooks(child))
        held = {name: value for name, value in vars(child).items() if name not in left_out}
        for name, value in (held | child._buffers).items():
            for place, leaf in pytree.tree_leaves_with_path(value):
                if isinstance(leaf, torch.Tensor):
                    found[f"{path}.{name}".removeprefix(".") + pytree.keystr(place)] = leaf
    return found
