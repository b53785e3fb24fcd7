# SPDX-License-Identifier: Apache-2.0
"""Makes `init_process_group("atoll")` work. PyTorch calls register() at the end of `import torch`, and so does
`import atoll`. It loads only the plug-in of the device that ATOLL_DEVICE names; Atoll's own library is loaded when the
first group is made."""

import contextlib
import os
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

NAME = "atoll"


def _later(module: str, name: str) -> Callable[..., Any]:
    """Returns a function that imports its module when it is called."""

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **named)

    return call


def _register() -> None:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    _load_device()
    _register_stores()
    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        devices.append(accelerator.type)
    if NAME.upper() not in dist.Backend._plugins:
        create = _later("atoll.backend", "create")
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=devices)
        return
    # An accelerator's own plug-in may have been loaded in the meantime.
    known = dist.Backend.backend_capability[NAME]
    known.extend(device for device in devices if device not in known)


def _register_stores() -> None:
    """Registers redis:// and rediss:// for init_method. env://, the default, uses the store that a launcher names, if
    any."""
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    for scheme in ("redis", "rediss"):
        handlers.setdefault(scheme, _later("atoll.redis.store", "meet"))
    if os.environ.get("ATOLL_STORE"):
        handlers["env"] = _later("atoll.redis.store", "meet_by_environment")


def rendezvous_handler() -> Any:
    """Returns the factory of rendezvous handlers for `--rdzv-backend redis`, which torch elastic finds by its entry
    point "torchrun.handlers"."""
    return _later("atoll.redis.elastic", "create")


def _load_device() -> None:
    """Loads the plug-in of this rank's device. Groups serve the device types that are known when they are made, so a
    rank's own must be known by then. Errors are ignored here: the first group looks again, and reports them on all
    ranks."""
    kind = os.environ.get("ATOLL_DEVICE", "").partition(":")[0]
    if kind in ("", "cpu", "cuda", "xpu"):  # PyTorch's own
        return
    from atoll import vendors

    with contextlib.suppress(vendors.VendorError):
        vendors.load_module_of(kind)


def register() -> None:
    """Registers the backend for the CPU and the current accelerator; may be called again. Never raises: an error here
    would break `import torch` itself, so it becomes a warning."""
    try:
        _register()
    except Exception as error:
        warnings.warn(f"the atoll backend could not be registered: {error}", stacklevel=2)
