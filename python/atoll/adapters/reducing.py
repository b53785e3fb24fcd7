# SPDX-License-Identifier: Apache-2.0
"""Finds the module that reduces gradients under other libraries' wrappers."""

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


def reducing(model: nn.Module, library: str) -> nn.Module:
    """Returns the module that reduces the gradients, without the wrapper of torch.compile. Raises TypeError if the
    library has not wrapped the model, as in a single process."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    if not isinstance(inner, DistributedDataParallel | FSDPModule):
        raise TypeError(
            f"{library} has not wrapped the model ({type(inner).__name__}) in DistributedDataParallel or fully_shard: "
            'start at least two ranks, call torch.distributed.init_process_group("atoll") first, and let it prepare '
            "the model before the loader is made"
        )
    return inner
