# SPDX-License-Identifier: Apache-2.0
"""The facts about a rank: machine, device, versions, limits and settings. They need no group."""

import fcntl
import os
import platform
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from atoll import vendors
from atoll._processor import processor_name

_SIOCGIFADDR = 0x8915
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8


@dataclass(frozen=True)
class Facts:
    rank: int
    host: str
    pid: int
    device: str  # "cuda:0", "cpu"
    device_name: str
    device_count: int
    versions: dict[str, str]  # of atoll, torch and python
    library: str  # the device vendor's collective library with its version; empty if there is none
    cores: list[int]  # that this process may use
    threads: int  # that PyTorch computes with
    memory_bytes: int
    machine: str  # equal for processes of one running system
    network: str  # the network namespace
    host_label: str  # ATOLL_HOST
    transport: str  # ATOLL_TRANSPORT
    key_file: bool
    address: str  # ATOLL_ADDRESS, ATOLL_IFACE or ATOLL_RAILS
    interfaces: list[str]  # with an address, without loopback
    open_files: list[int]  # lower and upper limit; -1: none

    @property
    def place(self) -> str:
        """Equal for ranks that Atoll considers to be on one host."""
        return self.host_label or f"{self.machine}/{self.network}"


def of_this_rank(rank: int, wanted_device: str) -> Facts:
    """Collects the facts of this rank. Raises ValueError if the device is not available."""
    import atoll

    device, count = _device(wanted_device)
    variables = os.environ.get
    return Facts(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=_device_name(device),
        device_count=count,
        versions={"atoll": atoll.__version__, "torch": torch.__version__, "python": platform.python_version()},
        library=_vendor_library(device),
        cores=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        machine=_machine(),
        network=_network(),
        host_label=variables("ATOLL_HOST", ""),
        transport=variables("ATOLL_TRANSPORT", "") or "auto",
        key_file=bool(variables("ATOLL_KEY_FILE")),
        address=variables("ATOLL_ADDRESS") or variables("ATOLL_IFACE") or variables("ATOLL_RAILS") or "",
        interfaces=_interfaces(),
        open_files=list(resource.getrlimit(resource.RLIMIT_NOFILE)),
    )


def _device(wanted: str) -> tuple[torch.device, int]:
    """Returns the device of this rank, and the number of devices of its type. `wanted` overrides the environment."""
    try:
        device = vendors.this_device("" if wanted == "auto" else wanted)
    except vendors.VendorError as error:
        raise ValueError(f"device {wanted!r} is not available on {socket.gethostname()}: {error}") from None
    if device.type == "cpu":
        return device, 1
    torch.accelerator.set_device_index(device.index)
    return device, torch.accelerator.device_count()


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return processor_name()
    if device.type == "sim":
        return "simulated"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device.index)) if name else device.type


def _vendor_library(device: torch.device) -> str:
    if device.type != "cuda" or not torch.distributed.is_nccl_available():
        return ""
    version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _network() -> str:
    try:
        return str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        return ""


def _interfaces() -> list[str]:
    """Returns the network interfaces that are up and have an address, without loopback."""
    try:
        with_ipv6 = {line.split()[-1] for line in Path("/proc/net/if_inet6").read_text().splitlines()}
    except OSError:
        with_ipv6 = set()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                flags = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
            except OSError:
                flags = _IFF_UP
            up = flags & _IFF_UP and not flags & _IFF_LOOPBACK
            if up and (name in with_ipv6 or _has_ipv4(probe, name)):
                found.append(name)
    return found


def _has_ipv4(probe: socket.socket, interface: str) -> bool:
    try:
        fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except OSError:
        return False
    return True
