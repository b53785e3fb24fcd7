# SPDX-License-Identifier: Apache-2.0
"""Fast paths of PyTorch's own layers that depend on values and on gradients being off, which graphs cannot express."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.infer.errors import ExportError


def refuse_fast_paths(copy: nn.Module) -> None:
    """Makes calls of this copy of a module raise ExportError where values would choose the path, whatever the values of
    the example."""
    for path, layer in copy.named_modules():
        if isinstance(layer, nn.TransformerEncoder):
            layer.register_forward_pre_hook(partial(_refuse_nested, path), with_kwargs=True)


def _refuse_nested(path: str, encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = inspect.signature(encoder.forward).bind(*args, **kwargs).arguments
    if given.get("src_key_padding_mask") is None or given.get("mask") is not None or given["src"].dim() != 3:
        return
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(encoder, "use_nested_tensor", False):
        return
    where = f"the layer {path}" if path else "the model"
    raise ExportError(
        f"{where} (TransformerEncoder) gets a src_key_padding_mask: without gradients PyTorch then sets padded "
        f"positions to zero if they are at the end, which a graph cannot. Set its use_nested_tensor to False, or call "
        f"torch.backends.mha.set_fastpath_enabled(False) at the start of the program"
    )
