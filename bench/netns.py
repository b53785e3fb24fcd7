# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by one shaped link. Needs root; leaves nothing behind, also after an interrupt."""

import os
import signal
import subprocess
from pathlib import Path
from types import FrameType

from contenders import Place

BURST = "256kb"
ADDRESSES = ("10.97.0.1", "10.97.0.2")
STORE_PORT = 29500  # of the namespace's own, where nobody else listens
_PREFIX = "atollbench"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def remove_stale() -> None:
    """Namespaces of runs that were killed."""
    for path in Path("/run/netns").glob(f"{_PREFIX}-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _delete(path.name)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class ShapedLink:
    """A context manager: the namespaces exist inside the `with` block."""

    def __init__(self, bits_per_second: int) -> None:
        self.rate = bits_per_second
        self.names = tuple(f"{_PREFIX}-{os.getpid()}-{side}" for side in "ab")
        self._handler: object = None

    def __enter__(self) -> "ShapedLink":
        if os.geteuid() != 0:
            raise RuntimeError("network namespaces need root: run this scenario as root")
        remove_stale()
        self._handler = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        for name in self.names:
            _ip("netns", "add", name)
        one, other = self.names
        _ip("link", "add", "bridge0", "netns", one, "type", "veth", "peer", "name", "bridge0", "netns", other)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "bridge0")
            _ip("-n", name, "link", "set", "bridge0", "up")
            words = ["tc", "-n", name, "qdisc", "add", "dev", "bridge0", "root", "tbf", "rate", f"{self.rate}bit"]
            subprocess.run([*words, "burst", BURST, "latency", "50ms"], check=True)

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            _delete(name)
        if callable(self._handler) or isinstance(self._handler, signal.Handlers):
            signal.signal(signal.SIGTERM, self._handler)

    def prefix(self, side: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.names[side])

    def places(self, layout: str) -> list[Place]:
        """One rank per letter: "AABB". Ranks of one letter share a namespace and an island."""
        places = []
        for letter in layout:
            environment = (("ATOLL_ISLAND", letter), ("ATOLL_IFACE", "bridge0"), ("GLOO_SOCKET_IFNAME", "bridge0"))
            places.append(Place(self.prefix("AB".index(letter)), environment))
        return places

    @property
    def store(self) -> tuple[str, int]:
        return ADDRESSES[0], STORE_PORT
