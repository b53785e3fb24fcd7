# SPDX-License-Identifier: Apache-2.0
"""Makes unlike accelerators work as one: the process group backend "atoll" for torch.distributed.

Public are the names in `__all__` of atoll, atoll.training, atoll.infer, atoll.pipeline, atoll.plan, atoll.sim and
atoll.adapters; all other modules are private and may change.

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
    from atoll import infer, pipeline, plan, training
    from atoll.arena import empty
    from atoll.backend import Options, dump, islands, layout, links, monitored_barrier, time_split
    from atoll.loading.loader import DataLoader
    from atoll.recovering.elastic_trainer import ElasticTrainer
    from atoll.redis.store import RedisStore
    from atoll.saving.checkpointer import Checkpointer
    from atoll.vendors import Vendor, register_vendor
    from atoll.vendors import this_device as device

_WHERE = {
    "Checkpointer": "atoll.saving.checkpointer",
    "DataLoader": "atoll.loading.loader",
    "ElasticTrainer": "atoll.recovering.elastic_trainer",
    "Options": "atoll.backend",
    "RedisStore": "atoll.redis.store",
    "Vendor": "atoll.vendors",
    "dump": "atoll.backend",
    "empty": "atoll.arena",
    "islands": "atoll.backend",
    "layout": "atoll.backend",
    "links": "atoll.backend",
    "monitored_barrier": "atoll.backend",
    "register_vendor": "atoll.vendors",
    "time_split": "atoll.backend",
}
_MODULES = ("infer", "pipeline", "plan", "training")
_RENAMED = {  # old names and their places, kept for one release
    "BatchSampler": "atoll.training.BatchSampler",
    "BoundaryCodec": "atoll.pipeline.BoundaryCodec",
    "CompressedGradients": "atoll.training.CompressedGradients",
    "Island": "atoll.backend.Island",
    "Recovering": "atoll.ElasticTrainer",
    "Saved": "atoll.Checkpointer",
    "Settings": "atoll.training.Settings",
    "SyncBatchNorm": "atoll.training.SyncBatchNorm",
    "Watch": "atoll.training.Watch",
    "align_replicas": "atoll.training.align_replicas",
    "compress_gradients": "atoll.training.compress_gradients",
    "convert_batch_norm": "atoll.training.convert_batch_norm",
    "merge_batch_norm": "atoll.training.merge_batch_norm",
    "pack_boundaries": "atoll.pipeline.pack_boundaries",
    "print_schedule": "atoll.training.print_schedule",
    "replica_difference": "atoll.training.replica_difference",
}
__all__ = [
    "Checkpointer", "DataLoader", "ElasticTrainer", "Options", "RedisStore", "Vendor", "__version__", "device", "dump",
    "empty", "infer", "islands", "layout", "links", "monitored_barrier", "pipeline", "plan", "register_vendor",
    "time_split", "training",
]  # fmt: skip

_problem = torch_problem()
if _problem:
    if "torch" not in sys.modules:
        raise ImportError(_problem)
    # `import torch` may be what imports this package, and must succeed. Using Atoll raises the error.
    logging.getLogger(__name__).warning(_problem)

_autoload.register()


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        place = _RENAMED[name]
        message = f"atoll.{name} is now {place}; the old name goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        module, _, new = place.rpartition(".")
        return getattr(import_module(module), new)
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in _MODULES:
        return import_module(f"atoll.{name}")
    if name == "device":
        return import_module("atoll.vendors").this_device
    raise AttributeError(f"module 'atoll' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
