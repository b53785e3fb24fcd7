# SPDX-License-Identifier: Apache-2.0
"""Unlike accelerators as one: the process group backend "atoll" for torch.distributed.

Importing this package registers the backend and loads nothing else; Atoll's own library is loaded with the first group,
or with the first of the functions below."""

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atoll import _autoload
from atoll._build_info import VERSION as __version__
from atoll._version_check import torch_problem

if TYPE_CHECKING:
    from atoll.backend import Options, dump, islands, links, monitored_barrier, print_schedule, time_split

__all__ = [
    "Options",
    "__version__",
    "dump",
    "islands",
    "links",
    "monitored_barrier",
    "print_schedule",
    "time_split",
]

_problem = torch_problem()
if _problem:
    if "torch" not in sys.modules:
        raise ImportError(_problem)
    # `import torch` may be what imports this package, and must succeed. Using Atoll raises.
    logging.getLogger(__name__).warning(_problem)

_autoload.register()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("atoll.backend"), name)
    raise AttributeError(f"module 'atoll' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
