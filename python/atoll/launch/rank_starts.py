# SPDX-License-Identifier: Apache-2.0
"""Plans how each local rank starts: its command, its environment and its island."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from atoll.launch import LaunchError
from atoll.launch.containers import container_command, find_runtime
from atoll.launch.islands import Island, devices_of

WORKER = Path(__file__).with_name("worker.py")


@dataclass
class RankStart:
    """One local rank. `command` is followed by the program's arguments; `death_signal` is sent to it if the launcher
    dies without having stopped it; `island` is empty if no islands were given."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    death_signal: int = signal.SIGKILL
    island: str = ""


@dataclass(frozen=True)
class Starts:
    """All local ranks in order, and the container runtime if one of them needs one."""

    ranks: list[RankStart]
    runtime: str | None = None


def find_interpreter(island: Island, default: str) -> str:
    """Returns the absolute path of the island's interpreter. Symbolic links are kept, because a virtual environment's
    interpreter is one."""
    if island.python is None:
        return default
    found = shutil.which(os.path.expanduser(island.python))
    if found is None:
        raise LaunchError(
            f"island {island.name!r}: python={island.python} is not an executable program: write the path of an "
            "interpreter, such as python=/srv/rocm-venv/bin/python"
        )
    return os.path.abspath(found)


def plan_starts(
    islands: Sequence[Island], program: str, with_python: bool, local_ranks: int, label: str, folders: Sequence[Path]
) -> Starts:
    """Returns how all local ranks start. `program` is what torchrun would start: the interpreter if `with_python`,
    otherwise the program itself. `label` and `folders` are for containers: their label, and the host folders that they
    see."""
    if not islands:
        return Starts([RankStart([program]) for _ in range(local_ranks)])
    devices = devices_of(islands)
    runtime = None
    ranks: dict[int, RankStart] = {}
    for island in islands:
        if island.python and not with_python:
            raise LaunchError(
                f"island {island.name!r}: python={island.python} has no effect with --no-python: remove one of them"
            )
        if island.container and runtime is None:
            runtime = find_runtime(island.name)
        for rank in island.ranks:
            environment = dict(island.environment, ATOLL_ISLAND=island.name)
            if rank in devices:
                environment["ATOLL_DEVICE"] = devices[rank]
            if island.container and runtime:
                command = container_command(runtime, island.container, label, island.device, environment, folders)
                command.append((island.python or "python3") if with_python else program)
                ranks[rank] = RankStart(command, {}, signal.SIGTERM, island.name)
            else:
                command = [find_interpreter(island, program) if with_python else program]
                ranks[rank] = RankStart(command, environment, island=island.name)
    return Starts([ranks[rank] for rank in sorted(ranks)], runtime)


def write_starts(starts: Starts, file: Path) -> None:
    """Writes the start file for worker.py; this process is the launcher."""
    text = json.dumps({"launcher": os.getpid(), "ranks": [asdict(rank) for rank in starts.ranks]})
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")
