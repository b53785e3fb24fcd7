# SPDX-License-Identifier: Apache-2.0
"""Makes `init_process_group("atoll")` work. PyTorch calls register() at the end of `import torch`, and `import atoll`
does; it loads nothing else but the device that ATOLL_DEVICE names: Atoll's own library is loaded when the first group
is made."""

import contextlib
import os
import warnings
from importlib import import_module
from typing import Any

NAME = "atoll"


def _create(settings: Any, options: Any) -> Any:
    from atoll import backend

    return backend.create(settings, options)


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
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
        return
    # An accelerator's own plug-in may have been loaded since.
    known = dist.Backend.backend_capability[NAME]
    known.extend(device for device in devices if device not in known)


def _meet(url: str, **settings: Any) -> Any:
    from atoll.redis import store

    return store.meet(url, **settings)


def _meet_by_environment(url: str, **settings: Any) -> Any:
    from atoll.redis import store

    return store.meet_by_environment(url, **settings)


def _register_stores() -> None:
    """redis:// and rediss:// for init_method; env://, the default, leads to the store that a launcher names, if so."""
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers.setdefault("redis", _meet)
    handlers.setdefault("rediss", _meet)
    if os.environ.get("ATOLL_STORE"):
        handlers["env"] = _meet_by_environment


def rendezvous_handler() -> Any:
    """What torch elastic calls for its entry point "torchrun.handlers": the maker of handlers for
    `--rdzv-backend redis`."""

    def create(parameters: Any) -> Any:
        from atoll.redis import elastic

        return elastic.create(parameters)

    return create


def _load_device() -> None:
    """Groups serve the device types that are known when they are made, so a rank's own must be known by then. What is
    wrong with it is said by the first group, which looks for it again, and on all ranks."""
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
