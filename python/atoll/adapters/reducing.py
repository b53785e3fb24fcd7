# SPDX-License-Identifier: Apache-2.0
"""What other libraries wrap around a model."""

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


def reducing(model: nn.Module, library: str) -> nn.Module:
    """The module that reduces the gradients, without what torch.compile puts around it. Raises TypeError where the
    library has not wrapped the model, as it does with a single process."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    if not isinstance(inner, DistributedDataParallel | FSDPModule):
        raise TypeError(
            f"{library} has not wrapped the model ({type(inner).__name__}) in DistributedDataParallel or fully_shard: "
            'start two ranks or more, call torch.distributed.init_process_group("atoll") first, and let it prepare the '
            "model before the loader is made"
        )
    return inner
