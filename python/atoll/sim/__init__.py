# SPDX-License-Identifier: Apache-2.0
"""A simulated accelerator for PyTorch: `import atoll.sim`, then use the device "sim".

Host code cannot access its memory, its streams run asynchronously, and every operator of PyTorch works on it, because
the CPU's kernels compute. With ATOLL_SIM_SPEED and ATOLL_SIM_BANDWIDTH operations take the time of a device of that
speed, of the kind ATOLL_SIM_MODEL (atoll/sim/kinds): results of measurements are then "modelled device time, real
bytes"."""

import atexit

import torch
import torch.distributed as dist

from atoll._version_check import require_matching_torch

require_matching_torch()

from atoll import _C, _autoload, _sim  # noqa: E402 - only after the check
from atoll.sim import device_module, kinds  # noqa: E402

NAME = "sim"
LIBRARY = "simccl"  # its own collective library, as NCCL is CUDA's
__all__ = ["oversubscribed", "punctuality"]


def _register() -> None:
    # Invalid variables raise ValueError before PyTorch knows the device.
    _sim.device_count()
    _sim.set_kind(**kinds.chosen())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, device_module)  # type: ignore[no-untyped-call]
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    _autoload.register()  # the atoll backend serves this device too
    _C.set_network_memory(NAME, "host", _sim.host_address_function())
    if dist.is_available() and LIBRARY.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(LIBRARY, _sim.ProcessGroupSimccl, devices=[NAME])


_register()
atexit.register(_sim.end_autograd_threads)


def punctuality(index: int = -1) -> dict[str, int]:
    """Returns for one device how many `tasks` had a modelled time, and how many of them were `late` because this
    machine was too slow or too busy."""
    return dict(_sim.punctuality(index))


def oversubscribed(index: int = -1) -> bool:
    """Returns whether more than one task in twenty was late, so that modelled times mean nothing."""
    counts = punctuality(index)
    return 20 * counts["late"] > counts["tasks"]
