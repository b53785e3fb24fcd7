# SPDX-License-Identifier: Apache-2.0
"""`torch.sim`: what PyTorch and its libraries look up in the module of a device type."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from atoll import _sim
from atoll._sim import current_device, device_count
from atoll._sim import is_initialized as is_initialized

_DeviceLike = torch.device | str | int | None


def _index(device: _DeviceLike) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    index = torch.device(device).index
    return current_device() if index is None else index


def is_available() -> bool:
    return device_count() > 0


def set_device(device: _DeviceLike) -> None:
    _sim.set_device(_index(device))


def init() -> None:
    synchronize()


def _lazy_init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def synchronize(device: _DeviceLike = None) -> None:
    """Blocks until all streams of the device are idle."""
    _sim.synchronize(_index(device))


@contextlib.contextmanager
def device(device: _DeviceLike) -> Iterator[None]:
    """Makes `device` current inside the `with` block."""
    before = current_device()
    _sim.set_device(_index(device))
    try:
        yield
    finally:
        _sim.set_device(before)


class Stream(torch.Stream):
    """A queue of work: torch.Stream on this device type."""

    def __new__(cls, device: _DeviceLike = None, priority: int = 0, **ids: Any) -> "Stream":
        if ids:
            return super().__new__(cls, **ids)
        return super().__new__(cls, torch.device("sim", _index(device)), priority=priority)


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # noqa: N802
    """A point in a stream's work: torch.Event on this device type."""
    return torch.Event("sim", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def _as_stream(ids: tuple[int, int, int]) -> Stream:
    return Stream(stream_id=ids[0], device_index=ids[1], device_type=ids[2])


def current_stream(device: _DeviceLike = None) -> Stream:
    return _as_stream(_sim.current_stream(_index(device)))


def default_stream(device: _DeviceLike = None) -> Stream:
    index, kind = _index(device), _sim.current_stream()[2]
    return _as_stream((0, index, kind))


def set_stream(stream: torch.Stream) -> None:
    _sim.set_stream(stream.stream_id, stream.device_index)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes `stream`, and its device, current inside the `with` block; None changes nothing."""
    if stream is None:
        yield
        return
    with device(stream.device_index):
        before = _sim.set_stream(stream.stream_id, stream.device_index)
        try:
            yield
        finally:
            _sim.set_stream(before[0], before[1])


def manual_seed(seed: int) -> None:
    _sim.default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _sim.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    _sim.default_generator().seed()


def initial_seed() -> int:
    return int(_sim.default_generator().initial_seed())


def get_rng_state(device: _DeviceLike = None) -> torch.Tensor:
    state: torch.Tensor = _sim.default_generator(_index(device)).get_state()
    return state


def set_rng_state(state: torch.Tensor, device: _DeviceLike = None) -> None:
    _sim.default_generator(_index(device)).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def memory_allocated(device: _DeviceLike = None) -> int:
    """Returns the bytes of tensors on the device."""
    return _sim.memory(_index(device))[0]


def max_memory_allocated(device: _DeviceLike = None) -> int:
    return _sim.memory(_index(device))[1]


def reset_peak_memory_stats(device: _DeviceLike = None) -> None:
    """Resets max_memory_allocated() to the current usage."""
    _sim.reset_peak_memory(_index(device))


def mem_get_info(device: _DeviceLike = None) -> tuple[int, int]:
    """Returns free and total bytes; freed memory that the device still uses is not free."""
    _, _, held, size = _sim.memory(_index(device))
    return size - held, size


def memory_reserved(device: _DeviceLike = None) -> int:
    """Returns bytes in use, including freed ones that the device still uses."""
    return _sim.memory(_index(device))[2]


def empty_cache() -> None:
    """Reclaims freed memory that is no longer used, as allocating does too, and returns free pages to the host."""
    torch.accelerator.empty_cache()
