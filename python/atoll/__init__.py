# SPDX-License-Identifier: Apache-2.0
"""Makes unlike accelerators work as one: the process group backend "atoll" for torch.distributed.

Importing this package registers the backend and loads nothing else. Atoll's own library is loaded with the first group,
or when one of the names below is first used."""

import logging
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atoll import _autoload
from atoll._version_check import FROM_SOURCE, torch_problem

try:
    from atoll._build_info import VERSION as __version__
except ModuleNotFoundError:
    raise ImportError(
        f"{__path__[0]} is Atoll's source tree, which is not built: start Python in another folder to use the "
        f"installed package, or install it from the folder that holds pyproject.toml: {FROM_SOURCE}"
    ) from None

if TYPE_CHECKING:
    from atoll.backend import (
        Island,
        Options,
        dump,
        islands,
        layout,
        links,
        monitored_barrier,
        print_schedule,
        time_split,
    )
    from atoll.loading.loader import DataLoader
    from atoll.loading.sampler import BatchSampler
    from atoll.loading.settings import Settings
    from atoll.packing.boundary import BoundaryCodec, pack_boundaries
    from atoll.packing.gradients import CompressedGradients, compress_gradients
    from atoll.recovering.job import ElasticTrainer
    from atoll.redis.store import RedisStore
    from atoll.saving.saved import Checkpointer
    from atoll.vendors import Vendor, register_vendor
    from atoll.vendors import this_device as device
    from atoll.watching.options import Watch
    from atoll.weighting.batch_norm import SyncBatchNorm, convert_batch_norm, merge_batch_norm
    from atoll.weighting.replicas import align_replicas, replica_difference

_WHERE = {
    "BatchSampler": "atoll.loading.sampler",
    "BoundaryCodec": "atoll.packing.boundary",
    "Checkpointer": "atoll.saving.saved",
    "CompressedGradients": "atoll.packing.gradients",
    "DataLoader": "atoll.loading.loader",
    "ElasticTrainer": "atoll.recovering.job",
    "Island": "atoll.backend",
    "Options": "atoll.backend",
    "RedisStore": "atoll.redis.store",
    "Settings": "atoll.loading.settings",
    "SyncBatchNorm": "atoll.weighting.batch_norm",
    "Vendor": "atoll.vendors",
    "Watch": "atoll.watching.options",
    "align_replicas": "atoll.weighting.replicas",
    "compress_gradients": "atoll.packing.gradients",
    "convert_batch_norm": "atoll.weighting.batch_norm",
    "dump": "atoll.backend",
    "islands": "atoll.backend",
    "layout": "atoll.backend",
    "links": "atoll.backend",
    "merge_batch_norm": "atoll.weighting.batch_norm",
    "monitored_barrier": "atoll.backend",
    "pack_boundaries": "atoll.packing.boundary",
    "print_schedule": "atoll.backend",
    "register_vendor": "atoll.vendors",
    "replica_difference": "atoll.weighting.replicas",
    "time_split": "atoll.backend",
}
_RENAMED = {"Recovering": "ElasticTrainer", "Saved": "Checkpointer"}  # old names, kept for one release
__all__ = [
    "BatchSampler",
    "BoundaryCodec",
    "Checkpointer",
    "CompressedGradients",
    "DataLoader",
    "ElasticTrainer",
    "Island",
    "Options",
    "RedisStore",
    "Settings",
    "SyncBatchNorm",
    "Vendor",
    "Watch",
    "__version__",
    "align_replicas",
    "compress_gradients",
    "convert_batch_norm",
    "device",
    "dump",
    "infer",
    "islands",
    "layout",
    "links",
    "merge_batch_norm",
    "monitored_barrier",
    "pack_boundaries",
    "pipeline",
    "print_schedule",
    "register_vendor",
    "replica_difference",
    "time_split",
]

_problem = torch_problem()
if _problem:
    if "torch" not in sys.modules:
        raise ImportError(_problem)
    # `import torch` may be what imports this package, and must succeed. Using Atoll raises the error.
    logging.getLogger(__name__).warning(_problem)

_autoload.register()


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        new = _RENAMED[name]
        message = f"atoll.{name} is now atoll.{new}; the old name goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = new
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in ("infer", "pipeline"):
        return import_module(f"atoll.{name}")
    if name == "device":
        return import_module("atoll.vendors").this_device
    raise AttributeError(f"module 'atoll' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
