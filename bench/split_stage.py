# SPDX-License-Identifier: Apache-2.0
"""Real sessions of split inference with modelled devices: a server, the links to it and robots, as processes.

The link is a relay in user space over loopback, in the server's process but on a thread of its own, which wakes up to
the microsecond; it carries each byte when a link of that rate would have carried all bytes before it."""

import json
import math
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import peers

Line = dict[str, Any]
_HEAD_START = 0.3  # seconds from the announcement of the start to the start itself
_ENDING = 10.0  # seconds that a program has to exit


@dataclass(frozen=True)
class Programs:
    """The programs of bench/split."""

    session: Path
    server: Path


def built() -> Programs:
    """Returns the programs of build/bench, built if necessary."""
    return Programs(peers.cxx_program("split_session"), peers.cxx_program("split_server"))


class Process:
    """A program that reads and writes a JSON object per line."""

    def __init__(self, program: Path, first: Line) -> None:
        self._name = program.name
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(first)

    def say(self, value: Line) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def line(self) -> Line:
        """Reads the next line. Raises RuntimeError with the program's error, or if the program has ended."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._name} ended with status {self._process.wait()}; its message is above")
        value: Line = json.loads(text)
        if "error" in value:
            raise RuntimeError(f"{self._name}: {value['error']}")
        return value

    def end(self) -> None:
        """Ends the program, in order if possible, so that the processor time of its children counts as ours."""
        try:
            self._process.communicate(timeout=_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@dataclass
class Robot:
    """The outcome of one robot's inferences."""

    facts: Line  # what the robot reported before it began
    lines: list[Line]
    report: Line  # the session's own report


class Stage:
    """A server with its links, and as many robots as are asked for. A context manager; leaving it ends all processes.

    `links`: {"rate", "latency", "half_duplex", "trace"} each, rates in bytes per second. `turns`: the number of
    sessions that the server computes for at once."""

    def __init__(self, programs: Programs, links: Sequence[Line], turns: int = 1) -> None:
        self._programs = programs
        self._folder = tempfile.TemporaryDirectory(prefix="atoll-split-")
        self._key = Path(self._folder.name) / "key"
        with os.fdopen(os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        settings = {"key_file": str(self._key), "cache": str(Path(self._folder.name) / "models"), "turns": turns}
        self._server = Process(programs.server, {**settings, "links": list(links)})
        self._robots: list[Process] = []
        try:
            self.links: list[str] = self._server.line()["links"]
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[tuple[int, Line]]) -> list[Robot]:
        """Runs a robot for each task, at its link; all begin at the same moment, with the links' traces, once all are
        ready. The first one that uses the server is ready before the next ones start, so that the server is not
        disturbed while it times the model."""
        first = next((place for place, (_, task) in enumerate(tasks) if task["policy"] != "local"), None)
        ready: dict[int, Line] = {}
        for place, (link, task) in enumerate(tasks):
            whole = {**task, "server": self.links[link], "key_file": str(self._key)}
            self._robots.append(Process(self._programs.session, whole))
            if place == first:
                ready[place] = self._robots[place].line()
        facts = [ready[place] if place in ready else robot.line() for place, robot in enumerate(self._robots)]
        begin = {"begin": time.monotonic() + _HEAD_START}
        for process in (self._server, *self._robots):
            process.say(begin)
        found = [Robot(fact, *_rest(robot)) for fact, robot in zip(facts, self._robots, strict=True)]
        self._end_robots()
        return found

    def close(self) -> None:
        self._end_robots()
        self._server.end()
        self._folder.cleanup()

    def _end_robots(self) -> None:
        for robot in self._robots:
            robot.end()
        self._robots = []

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _rest(robot: Process) -> tuple[list[Line], Line]:
    """Reads the lines of the robot's inferences, and its report."""
    lines = []
    while "report" not in (line := robot.line()):
        lines.append(line)
    report: Line = line["report"]
    return lines, report


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns quantiles, each of which is one of the values: the smallest that the given share of values does not
    exceed. Empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered)
    variance = sum((value - mean) ** 2 for value in ordered) / len(ordered)
    quantiles = {f"p{share}": ordered[math.ceil(share / 100 * len(ordered)) - 1] for share in (50, 95, 99)}
    return {"mean": mean, "std": math.sqrt(variance), **quantiles, "most": ordered[-1]}


def row_of(robot: Robot) -> dict[str, Any]:
    """Summarises a robot's inferences. Overheads are of those that followed their plan."""
    lines = robot.lines
    clear = [line for line in lines if "overhead" in line]
    count = max(len(lines), 1)
    plans: dict[str, int] = {}
    origins: dict[str, int] = {}
    for line in lines:
        plans[line["plan"]] = plans.get(line["plan"], 0) + 1
        origins[line["origin"]] = origins.get(line["origin"], 0) + 1
    return {
        "inferences": len(lines), "seconds": spread([line["seconds"] for line in lines]),
        "overhead": spread([line["overhead"] for line in clear]), "clear": len(clear),
        "with_framing": spread([line["with_framing"] for line in clear]),
        "on_bytes": sum(line["bytes_seconds"] for line in lines) / count,
        "joules": spread([line["joules"] for line in lines]), "plans": plans, "origins": origins,
        "guarded": sum(line["guard"] for line in lines), "link_losses": robot.report["link_losses"],
        "robot": sum(line["robot"] for line in lines) / count,
        "up_bytes": sum(line["up"] for line in lines) / count,
        "down_bytes": sum(line["down"] for line in lines) / count,
    }  # fmt: skip
