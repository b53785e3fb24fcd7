# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by shaped links. Needs root; leaves nothing behind, also after an interrupt."""

import os
import signal
import subprocess
from pathlib import Path
from types import FrameType

from contenders import Place

BURST_BYTES = 256 << 10  # below that a busy machine's shaper does not reach 1 Gbit/s
BURST = f"{BURST_BYTES}b"
ADDRESSES = ("10.97.0.1", "10.97.0.2")  # of the first link
STORE_PORT = 29500  # inside the namespace, where nothing else listens
_PREFIX = "atollbench"


def addresses(rail: int) -> tuple[str, str]:
    """Returns the addresses of both ends of a link."""
    return f"10.97.{rail}.1", f"10.97.{rail}.2"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def remove_stale() -> None:
    """Removes the namespaces of runs that were killed."""
    for path in Path("/run/netns").glob(f"{_PREFIX}-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _delete(path.name)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class ShapedLink:
    """A context manager: the namespaces exist inside the `with` block. `rails`: the number of parallel links, each with
    that rate; the first one carries the store, too. `burst`: the bytes that pass at once after a pause."""

    def __init__(self, bits_per_second: int, rails: int = 1, burst: str = BURST) -> None:
        self.rate = bits_per_second
        self.rails = rails
        self.burst = burst
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
            _ip("-n", name, "link", "set", "lo", "up")
        for rail in range(self.rails):
            self._make_rail(rail)

    def _make_rail(self, rail: int) -> None:
        one, other = self.names
        device = f"bridge{rail}"
        _ip("link", "add", device, "netns", one, "type", "veth", "peer", "name", device, "netns", other)
        for name, address in zip(self.names, addresses(rail), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            self._shape(name, device, "add")

    def _shape(self, name: str, device: str, verb: str) -> None:
        words = ["tc", "-n", name, "qdisc", verb, "dev", device, "root", "tbf", "rate", f"{self.rate}bit"]
        subprocess.run([*words, "burst", self.burst, "latency", "50ms"], check=True)

    def set_rate(self, bits_per_second: int) -> None:
        """Sets the rate of all links from now on."""
        self.rate = bits_per_second
        for name in self.names:
            for rail in range(self.rails):
                self._shape(name, f"bridge{rail}", "replace")

    def set_rail(self, rail: int, up: bool) -> None:
        """Pulls a cable, or plugs it in again."""
        _ip("-n", self.names[0], "link", "set", f"bridge{rail}", "up" if up else "down")

    def lose_what_is_sent(self, side: int) -> None:
        """Drops what one side sends over the first link; what is sent to that side still arrives."""
        words = ["neigh", "replace", ADDRESSES[1 - side], "lladdr", "02:00:00:00:00:01", "dev", "bridge0"]
        _ip("-n", self.names[side], *words, "nud", "permanent")

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
            environment = [("ATOLL_ISLAND", letter), ("GLOO_SOCKET_IFNAME", "bridge0"), ("ATOLL_IFACE", "bridge0")]
            if self.rails > 1:
                environment[-1] = ("ATOLL_RAILS", ",".join(f"bridge{rail}" for rail in range(self.rails)))
            places.append(Place(self.prefix("AB".index(letter)), tuple(environment)))
        return places

    @property
    def store(self) -> tuple[str, int]:
        return ADDRESSES[0], STORE_PORT
