# SPDX-License-Identifier: Apache-2.0
"""Parses `--island` strings, assigns local ranks to islands, and numbers the devices. Uses no processes or files."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from atoll.launch import LaunchError

MAX_LOCAL_RANKS = 4096
_NAME = re.compile(r"[A-Za-z0-9._@/-]{1,64}")
_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(\+[0-9]{1,9}(-[0-9]{1,9})?)*")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]{1,5})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_JOB = re.compile(r"(GROUP_|ROLE_|LOCAL_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
_OPTIONS = ("device", "python", "env", "container")
# PyTorch reaches AMD devices under the name "cuda".
_TORCH_NAMES = {"rocm": "cuda"}


@dataclass(frozen=True)
class Island:
    """One parsed `--island`. `ranks` are local ranks in ascending order. If the text gives only a number, they are
    empty until place() is called, and `count` is set."""

    name: str
    ranks: tuple[int, ...] = ()
    count: int = 0
    device: str | None = None
    python: str | None = None
    container: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


class _Text:
    """An `--island` string that makes the errors about itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def reject(self, problem: str) -> LaunchError:
        return LaunchError(f"--island {self.text!r}: {problem}")

    def ranks(self, text: str) -> tuple[tuple[int, ...], int]:
        """Returns explicit local ranks and 0, or no ranks and a count."""
        if not _RANKS.fullmatch(text):
            raise self.reject(f"invalid ranks {text!r}: write how many, such as 2, or which, such as 0-1+4")
        if text.isdigit():
            count = int(text)
            if not 0 < count <= MAX_LOCAL_RANKS:
                raise self.reject(
                    f"{count} ranks: an island has 1 to {MAX_LOCAL_RANKS}; for local rank 0 only, write 0-0"
                )
            return (), count
        ranks: list[int] = []
        for part in text.split("+"):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if low > high:
                raise self.reject(f"the range {part} is reversed: write {high}-{low}")
            if high >= MAX_LOCAL_RANKS:
                raise self.reject(f"local rank {high} is too large: a host has at most {MAX_LOCAL_RANKS}")
            ranks += range(low, high + 1)
        twice = [rank for rank, times in Counter(ranks).items() if times > 1]
        if twice:
            raise self.reject(f"local rank {twice[0]} is named twice: name it once")
        return tuple(sorted(ranks)), 0

    def option(self, text: str, options: dict[str, str], environment: dict[str, str]) -> None:
        key, equals, value = text.partition("=")
        if key not in _OPTIONS or not equals:
            raise self.reject(
                f"unknown option {text!r}: options are device=DEVICE, python=PATH, env=NAME=VALUE and container=IMAGE; "
                "double a comma inside a value"
            )
        if key == "env":
            self._variable(value, environment)
            return
        if key in options:
            raise self.reject(f"{key}= is given twice, as {options[key]!r} and {value!r}: remove one")
        if not value:
            raise self.reject(f"{key}= has no value: add one, or remove {key}=")
        if key == "device" and not _DEVICE.fullmatch(value):
            raise self.reject(
                f"invalid device {value!r}: write a type, such as cuda or cpu, or one device, such as cuda:3"
            )
        options[key] = value

    def _variable(self, text: str, environment: dict[str, str]) -> None:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name) or not equals:
            raise self.reject(f"env={text} sets no variable: write env=NAME=VALUE")
        if name in environment:
            raise self.reject(f"env={name}= is given twice, as {environment[name]!r} and {value!r}: remove one")
        if name == "ATOLL_ISLAND":
            raise self.reject(f"env={text}: the island's name is {self.text.partition(':')[0]!r}: change it there")
        if name == "ATOLL_DEVICE":
            raise self.reject(f"env={text}: use device={value} instead")
        if _OF_THE_JOB.fullmatch(name):
            raise self.reject(f"env={text}: {name} is set by the launcher for each rank: remove it")
        environment[name] = value


def parse_island(text: str) -> Island:
    """Parses `NAME:RANKS[,OPTION]...`. Two commas stand for one inside a value."""
    complaint = _Text(text)
    parts = [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]
    name, colon, ranks_text = parts[0].partition(":")
    if not colon or not ranks_text:
        raise complaint.reject("the ranks are missing: write NAME:RANKS, such as fast:2 or fast:0-1+4")
    if not _NAME.fullmatch(name):
        raise complaint.reject(f'invalid name {name!r}: use 1 to 64 letters, digits and characters of "._@/-"')
    ranks, count = complaint.ranks(ranks_text)
    options: dict[str, str] = {}
    environment: dict[str, str] = {}
    for part in parts[1:]:
        complaint.option(part, options, environment)
    return Island(name, ranks, count, environment=environment, **options)


def place(islands: Sequence[Island], local_ranks: int | None = None) -> list[Island]:
    """Returns the islands with their local ranks: explicit ones, and for counts the lowest ranks that no island names,
    in the order of the islands. Together they are 0 to n-1, where n is `local_ranks` if that is given."""
    taken: dict[int, str] = {}
    for name, times in Counter(island.name for island in islands).items():
        if times > 1:
            raise LaunchError(f"island {name!r} is given {times} times: combine its ranks, such as {name}:0-1+4")
    for island in islands:
        for rank in island.ranks:
            if rank in taken:
                raise LaunchError(
                    f"local rank {rank} is in island {taken[rank]!r} and in {island.name!r}: remove it from one"
                )
            taken[rank] = island.name
    placed = []
    for island in islands:
        if island.count:
            free = _lowest_free(taken, island.count)
            taken.update(dict.fromkeys(free, island.name))
            island = replace(island, ranks=free, count=0)
        placed.append(island)
    _check_complete(placed, local_ranks)
    return placed


def _lowest_free(taken: Iterable[int], count: int) -> tuple[int, ...]:
    known = set(taken)
    return tuple([rank for rank in range(len(known) + count) if rank not in known][:count])


def _check_complete(islands: Sequence[Island], local_ranks: int | None) -> None:
    ranks = {rank for island in islands for rank in island.ranks}
    missing = sorted(set(range(max(ranks) + 1)) - ranks)
    if missing:
        raise LaunchError(f"local rank {missing[0]} is in no island: add it to one, or number the ranks without gaps")
    if local_ranks is not None and local_ranks != len(ranks):
        sizes = ", ".join(f"{island.name}: {len(island.ranks)}" for island in islands)
        raise LaunchError(
            f"--nproc-per-node is {local_ranks}, but the islands have {len(ranks)} ranks ({sizes}): write "
            f"--nproc-per-node={len(ranks)}, or remove it"
        )


def devices_of(islands: Sequence[Island]) -> dict[int, str]:
    """Returns ATOLL_DEVICE of each local rank whose island has a device. A device with an index and "cpu" are kept;
    ranks with only a type get the lowest indexes that no island fixes, in the order of the local ranks."""
    wanted = {rank: island.device for island in islands if island.device for rank in island.ranks}
    used = {device for device in wanted.values() if ":" in device}
    found = {}
    for rank in sorted(wanted):
        device = wanted[rank]
        kind, _, index = device.partition(":")
        if not index and kind != "cpu":
            number = next(number for number in range(len(used) + 1) if f"{kind}:{number}" not in used)
            device = f"{kind}:{number}"
            used.add(device)
        found[rank] = device.replace(kind, _TORCH_NAMES.get(kind, kind), 1)
    return found
