# SPDX-License-Identifier: Apache-2.0
"""What a module's layers hold besides parameters, to see whether a call leaves something behind. torch.export only
warns of that, and does not see it in the layers of a module."""

import torch
from torch import nn
from torch.utils import _pytree as pytree

from atoll.infer.errors import ExportError
from atoll.infer.hooks import weights_of_hooks

_NOT_STATE = {"_parameters", "_buffers", "_modules"}  # of a layer's own attributes


class State:
    """The attributes of all layers at one moment."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = _held_tensors(module)

    def refuse_changes(self) -> None:
        """ExportError where another tensor lies somewhere than at that moment. Changes of the values of a tensor show
        in the graph instead."""
        now = _held_tensors(self._module)
        parameters = set(map(id, self._module.parameters()))  # which recurrent layers also hold as attributes
        changed = (name for name in [*now, *self._tensors] if now.get(name) is not self._tensors.get(name))
        name = next((name for name in changed if id(now.get(name)) not in parameters), None)
        if name is None:
            return
        raise ExportError(
            f"forward stores a tensor in {name}: a session keeps no state between inferences. Return it as an output "
            f"and take it as an input, or switch the state off; a cache that is filled only once is no state after one "
            f"call of the model before the export"
        )


def _held_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """By place."""
    found = {}
    for path, child in module.named_modules():
        left_out = _NOT_STATE.union(weights_of_hooks(child))
        held = {name: value for name, value in vars(child).items() if name not in left_out}
        for name, value in (held | child._buffers).items():
            for place, leaf in pytree.tree_leaves_with_path(value):
                if isinstance(leaf, torch.Tensor):
                    found[f"{path}.{name}".removeprefix(".") + pytree.keystr(place)] = leaf
    return found
