# SPDX-License-Identifier: Apache-2.0
"""The libraries that may reduce inside an island: one row per vendor.

A row is added from outside with `register_vendor`, or by a package that declares an entry point of the group
"atoll.vendors" (docs/adding-a-vendor.md)."""

import functools
import importlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch
import torch.distributed as dist

from atoll import _host_registrars as registrars

ENTRY_POINTS = "atoll.vendors"
_NAME = re.compile(r"[a-z0-9_-]+")
_REDUCTIONS = frozenset({"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"})
_log = logging.getLogger("atoll")


@dataclass(frozen=True)
class Vendor:
    """One vendor's collective library, as a backend of torch.distributed."""

    name: str
    """Names the vendor's software stack in island labels: ranks of one stack can reduce together."""
    device: str
    """PyTorch's device type: "cuda", "xpu", "npu"."""
    library: str
    """The backend's name: "nccl"."""
    module: str = ""
    """The Python module that registers device and backend when it is imported; empty for PyTorch's own."""
    follows_torch: bool = False
    """Whether the module's version must start with PyTorch's major and minor number."""
    one_host: bool = False
    """Whether the library only connects ranks on one host."""
    reductions: frozenset[str] = frozenset({"sum", "product", "min", "max"})
    """The reductions that it computes correctly for each supported type. "avg" only if every operation can average."""
    host_registrar: Callable[[], tuple[int, int, int] | None] = lambda: None
    """Returns the addresses of the C functions of the device's runtime that let its devices copy from and to host
    memory at full rate, and undo it: `int add(void *, size_t, unsigned)` and `int remove(void *)`, 0 for success, and
    `int last_error(void)`, called after a failure so that the runtime forgets it (0: there is none). With them, ranks
    of one host use each other's staging memory where it lies. None: pinned memory is used."""
    capture_mode: Callable[[], int] = lambda: 0
    """Returns the address of the C function with which a thread says how graphs that other threads capture concern it,
    `int exchange(int *mode)`, as CUDA's cudaThreadExchangeStreamCaptureMode does. 0: there is none, and threads of
    Atoll may end such a capture."""
    present: Callable[[], bool] = lambda: True
    """Returns whether this PyTorch is this vendor's build, if two vendors share a device type."""

    def __post_init__(self) -> None:
        for field in ("name", "device", "library"):
            value = getattr(self, field)
            if not _NAME.fullmatch(value):
                raise ValueError(f"vendor row: {field} {value!r} is not a word of lower-case letters, digits, _ and -")
        if unknown := self.reductions - _REDUCTIONS:
            raise ValueError(
                f"vendor {self.name!r}: unknown reductions {sorted(unknown)}; known: {sorted(_REDUCTIONS)}"
            )


_NCCL = frozenset({"sum", "avg", "product", "min", "max"})


def _is_cuda() -> bool:
    """Returns whether the device type "cuda" means NVIDIA's devices in this PyTorch, not AMD's."""
    return torch.version.hip is None


_rows = [
    Vendor(
        "nvidia",
        "cuda",
        "nccl",
        reductions=_NCCL,
        present=_is_cuda,
        host_registrar=registrars.cuda,
        capture_mode=registrars.cuda_capture_mode,
    ),
    Vendor(
        "amd",
        "cuda",
        "nccl",
        reductions=_NCCL,
        present=lambda: not _is_cuda(),
        host_registrar=registrars.rocm,
        capture_mode=registrars.rocm_capture_mode,
    ),
    Vendor("intel", "xpu", "xccl"),
    Vendor("huawei", "npu", "hccl", module="torch_npu", follows_torch=True),
    Vendor("cambricon", "mlu", "cncl", module="torch_mlu"),
    Vendor("moorethreads", "musa", "mccl", module="torch_musa"),
    Vendor(
        "sim",
        "sim",
        "simccl",
        module="atoll.sim",
        one_host=True,
        reductions=_NCCL,
        host_registrar=registrars.sim,
        capture_mode=registrars.sim_capture_mode,
    ),
]
# Used only if ATOLL_INNER names them: on the CPU Atoll itself reduces, and the older of NCCL's classes is the default.
_on_demand = [
    Vendor("gloo", "cpu", "gloo"),
    Vendor("nvidia", "cuda", "nccl2", reductions=_NCCL, present=_is_cuda),
]


def host_registrar(device: str) -> tuple[int, int, int] | None:
    """Returns Vendor.host_registrar's functions for a type of device."""
    rows = (row for row in vendors() if row.device == device and row.present())
    return next((functions for row in rows if (functions := row.host_registrar()) is not None), None)


def capture_mode(device: str) -> int:
    """Returns Vendor.capture_mode's function for a type of device; 0 if there is none."""
    rows = (row for row in vendors() if row.device == device and row.present())
    return next((address for row in rows if (address := row.capture_mode())), 0)


class VendorError(RuntimeError):
    """This process cannot use its device or the device's library; the message names the way out."""


def register_vendor(vendor: Vendor) -> None:
    """Adds a row, before the first process group is made. It takes precedence over earlier rows. Raises ValueError if
    it contradicts another row with the same name and device."""
    for row in _rows:
        if (row.name, row.device) == (vendor.name, vendor.device) and row != vendor:
            raise ValueError(f"vendor {vendor.name!r} on {vendor.device!r} is already registered with other values")
    if vendor not in _rows:
        _rows.insert(0, vendor)


@functools.cache
def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        try:
            row = point.load()
            register_vendor(row() if callable(row) else row)
        except Exception as error:
            _log.warning("the vendor row %s of %s was left out: %s", point.name, point.value, error)


def vendors() -> list[Vendor]:
    """Returns all rows, in the order in which they are tried."""
    _load_entry_points()
    return [*_rows, *_on_demand]


def _wanted_library(device: str) -> str | None:
    """Returns the setting of ATOLL_INNER for `device`: a library's name, "none", or None."""
    setting = os.environ.get("ATOLL_INNER", "")
    wanted = {}
    for part in filter(None, setting.split(",")):
        kind, colon, library = part.strip().partition(":")
        if not (colon and _NAME.fullmatch(kind) and _NAME.fullmatch(library)):
            raise VendorError(
                f'ATOLL_INNER="{setting}": expected DEVICE:LIBRARY, separated by commas, such as cpu:gloo or cuda:none'
            )
        wanted[kind] = library
    return wanted.get(device)


def is_named(device: str) -> bool:
    """Returns whether ATOLL_INNER sets the library inside islands of `device`."""
    return _wanted_library(device) is not None


def find(device: str) -> Vendor | None:
    """Returns the row for ranks that compute on `device` (a type), loaded and ready; None if Atoll itself reduces
    there. Raises VendorError if the library is not available."""
    wanted = _wanted_library(device)
    if wanted == "none":
        return None
    rows = [row for row in vendors() if row.device == device and row.present()]
    if wanted is None:
        rows = [row for row in rows if row not in _on_demand]
    else:
        known = sorted({row.library for row in rows})
        rows = [row for row in rows if row.library == wanted]
        if not rows:
            raise VendorError(
                f"ATOLL_INNER requests {wanted} on {device}; known there: {', '.join(known) or 'nothing'}, or none. "
                "Add a row for another library: atoll.register_vendor"
            )
    if not rows:
        return None
    _require(rows[0])
    return rows[0]


def _load_module(vendor: Vendor, otherwise: str) -> Any:
    """Imports the vendor's module. `otherwise` is for the error: what to do without it."""
    try:
        return importlib.import_module(vendor.module)
    except ImportError as error:
        raise VendorError(
            f"{vendor.device} needs the module {vendor.module} for {vendor.library}, but importing it failed "
            f"({error}): install it, or {otherwise}"
        ) from error


def _require(vendor: Vendor) -> None:
    if vendor.module:
        module = _load_module(vendor, f"set ATOLL_INNER={vendor.device}:none to reduce through host memory")
        _require_version(vendor, module)
    if plugin_of(vendor.library) is None and not _built_in(vendor.library):
        raise VendorError(
            f"this PyTorch ({torch.__version__}) has no backend {vendor.library} for {vendor.device}: install a build "
            f"that has it, or set ATOLL_INNER={vendor.device}:none to reduce through host memory"
        )


def _require_version(vendor: Vendor, module: Any) -> None:
    found = str(getattr(module, "__version__", "?"))
    wanted = ".".join(torch.__version__.split(".")[:2])
    if vendor.follows_torch and not re.match(re.escape(wanted) + r"(\D|$)", found):
        raise VendorError(
            f"{vendor.module} {found} is not built for PyTorch {torch.__version__}: install {vendor.module} {wanted}.*"
            f", or set ATOLL_INNER={vendor.device}:none to reduce through host memory"
        )


def plugin_of(library: str) -> Any:
    """Returns the plug-in that is registered for this name by another package or by PyTorch itself; None if there is
    none. Since 2.14 plug-ins that packages declare, including PyTorch's own, are registered on request."""
    ensure = getattr(dist.Backend, "_ensure_backend_registered", None)
    if ensure is not None:
        try:
            ensure(library)
        except (RuntimeError, TypeError) as error:
            raise VendorError(f"the backend {library} cannot be loaded: {error}") from error
    return dist.Backend._plugins.get(library.upper())


def _built_in(library: str) -> bool:
    present = getattr(dist, f"is_{library}_available", None)
    return bool(present and present())


def this_device(wanted: str = "") -> torch.device:
    """Returns the device that this rank computes on: `wanted` or ATOLL_DEVICE ("cpu", "cuda", "cuda:1", "sim"),
    otherwise the current accelerator, otherwise the CPU. An accelerator without an index is the LOCAL_RANK-th of this
    host. Raises VendorError if the device is not available."""
    wanted = wanted or os.environ.get("ATOLL_DEVICE", "")
    if not wanted:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or torch.accelerator.device_count() == 0:
            return torch.device("cpu")
        wanted = accelerator.type
    match = re.fullmatch(r"([a-z0-9_]+)(?::(\d{1,4}))?", wanted)
    if match is None:
        raise VendorError(f'ATOLL_DEVICE="{wanted}": expected a device such as cpu, cuda or cuda:1')
    kind = match[1]
    if kind == "cpu":
        return torch.device("cpu")
    load_module_of(kind)
    return _checked_device(wanted, kind, int(match[2]) if match[2] else None)


def load_module_of(kind: str) -> None:
    """Imports the module that provides the device type `kind`, if it needs one. Raises VendorError."""
    for row in vendors():
        if row.device == kind and row.module:
            # Without it there is no such device, whichever library reduces there.
            module = _load_module(row, "let this rank compute on the CPU with ATOLL_DEVICE=cpu")
            if _wanted_library(kind) != "none":
                _require_version(row, module)
            return


def _require_known(wanted: str, kind: str) -> None:
    """Raises VendorError for an unknown device type, such as "gpu"."""
    known = [*dict.fromkeys(row.device for row in vendors())]
    try:
        torch.device(kind)
    except RuntimeError:
        if kind not in known:
            raise VendorError(
                f"ATOLL_DEVICE={wanted}: {kind} is not a device type of PyTorch {torch.__version__}; use one of "
                f"{', '.join(known)} (cuda: NVIDIA's and AMD's)"
            ) from None


def _checked_device(wanted: str, kind: str, index: int | None) -> torch.device:
    accelerator = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count() if accelerator is not None else 0
    _require_known(wanted, kind)
    if accelerator is None or accelerator.type != kind or count == 0:
        here = f"{count} of type {accelerator.type}" if accelerator is not None and count else "none"
        raise VendorError(
            f"ATOLL_DEVICE={wanted}: this process finds no device of type {kind} (accelerators here: {here}; PyTorch "
            f"{torch.__version__}). Start it on a host with one, or with ATOLL_DEVICE=cpu"
        )
    if index is None:
        index = int(os.environ.get("LOCAL_RANK", "0")) % count
    if index >= count:
        raise VendorError(f"ATOLL_DEVICE={wanted}: this host has {count} devices of type {kind}, 0 to {count - 1}")
    return torch.device(kind, index)


@dataclass(frozen=True)
class Place:
    """What a rank reports about itself when a group is made."""

    device: str = "cpu"
    library: str = ""
    stack: str = ""  # of the island's label without ATOLL_ISLAND; "": the device type
    one_host: bool = True
    named: bool = False  # by ATOLL_INNER
    reductions: frozenset[str] = frozenset()
    problem: str = ""
    index: int = 0  # of the device


def _index_in_use(device: torch.device) -> int:
    """Returns the index of the device that the program has made current; where that is 0, as it is before a program
    chooses one, that of atoll.device()."""
    if device.type == "cpu":
        return 0
    return torch.accelerator.current_device_index() or device.index or 0


def this_place() -> Place:
    """Returns this rank's place. Never raises: problems are reported to all ranks of the group."""
    try:
        own = this_device()
        vendor = find(own.type)
    except VendorError as error:
        return Place(problem=str(error))
    device, index, named = own.type, _index_in_use(own), is_named(own.type)
    if vendor is None or device == "cpu":
        library, reductions = (vendor.library, vendor.reductions) if vendor else ("", frozenset())
        return Place(device, library, device, True, named, reductions, index=index)
    stack = f"{vendor.name}/{device}"
    if device == "sim" and (label := os.environ.get("ATOLL_SIM_VENDOR", "")):
        stack = f"{label}/{device}"
    return Place(device, vendor.library, stack, vendor.one_host, named, vendor.reductions, index=index)
