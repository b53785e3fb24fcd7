# SPDX-License-Identifier: Apache-2.0
"""The contenders: groups of processes that live for a whole run and sleep while others are measured."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from atoll.bench.launch import rank_environment
from atoll.bench.operations import Problem

RANK_PROGRAM = Path(__file__).with_name("rank.py")


@dataclass
class Result:
    """One block: the slowest rank's seconds for all calls."""

    seconds: float
    wrong: int
    call_ns: list[int]
    most_calls: int
    bytes: int


class Contender(Protocol):
    def block(self, problem: Problem, calls: int, each: bool) -> Result: ...


@dataclass(frozen=True)
class Place:
    """Where a rank runs: a command in front of it (`ip netns exec ...`), and its environment."""

    prefix: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class TorchRanks:
    """Ranks of torch.distributed with one group per backend. A context manager; leaving it ends the processes."""

    def __init__(self, places: Sequence[Place], backends: Sequence[str], store: tuple[str, int] | None = None) -> None:
        """`store`: address and port that rank 0 serves, for ranks that do not share this process's network."""
        agent = None
        if store is None:
            agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self._agent = agent
        address, port = store or ("127.0.0.1", agent.port if agent else 0)
        self._processes = []
        for rank, place in enumerate(places):
            environment = rank_environment(rank, len(places), address, port)
            environment.update(dict(place.environment))
            if store is not None:
                del environment["TORCHELASTIC_USE_AGENT_STORE"]
            command = [*place.prefix, sys.executable, str(RANK_PROGRAM), ",".join(backends)]
            self._processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        try:
            self._answers()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids, by rank."""
        return [process.pid for process in self._processes]

    def ask(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """Sends one command to all ranks; returns their answers. Raises RuntimeError naming a rank that has ended or
        failed; a rank ends after its first error."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"rank {rank} ended with status {process.wait()}; its message is above")
            answers.append(json.loads(line))
            if "error" in answers[-1]:
                raise RuntimeError(f"rank {rank}: {answers[-1]['error']}")
        return answers

    def contender(self, backend: str, device: str = "cpu", arena: bool = False) -> "TorchContender":
        """`device`: "cpu", or "own" for each rank's own."""
        return TorchContender(self, backend, device, arena)

    def close(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> "TorchRanks":
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        if kind is not None:
            for process in self._processes:
                process.kill()
        self.close()


@dataclass
class TorchContender:
    ranks: TorchRanks
    backend: str
    device: str = "cpu"
    arena: bool = False  # whether the buffers are atoll.empty's

    def block(self, problem: Problem, calls: int, each: bool) -> Result:
        on_device = {**vars(problem), "device": self.device, "arena": self.arena}
        blocks = self.ranks.ask("block", backend=self.backend, problem=on_device, calls=calls, each=each)
        return Result(
            seconds=max(block["seconds"] for block in blocks),
            wrong=sum(block["wrong"] for block in blocks),
            call_ns=[ns for block in blocks for ns in block["call_ns"]],
            most_calls=blocks[0]["most_calls"],
            bytes=blocks[0]["bytes"],
        )


class MpiRanks:
    """Ranks of mpi_all_reduce under one mpirun; they read commands from fifos, because a waiting MPI rank spins."""

    def __init__(self, program: Path, launch: Sequence[str], ranks: int, environment: Mapping[str, str]) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self._fifos = []
            for rank in range(ranks):
                path = f"{folder}/{rank}"
                os.mkfifo(path)
                # Opened for both directions, so that neither this open() nor a rank's waits for the other side.
                self._fifos.append(stack.enter_context(os.fdopen(os.open(path, os.O_RDWR), "wb", buffering=0)))
            command = [*launch, "-np", str(ranks), str(program), folder]
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(self._end)
            self._stack = stack.pop_all()
        self._ranks = ranks

    def block(self, problem: Problem, calls: int, each: bool) -> Result:
        """`problem` must be an in-place float32 sum all_reduce. Single calls are not timed."""
        if (problem.operation, problem.dtype, problem.reduction) != ("all_reduce", "float32", "sum"):
            raise ValueError(f"mpi_all_reduce cannot measure {problem}")
        for fifo in self._fifos:
            fifo.write(f"{problem.bytes} {calls}\n".encode())
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        words = self._process.stdout.readline().split()
        if len(words) != 2:
            self._process.kill()
            raise RuntimeError(f"mpirun ended: {self._process.stderr.read()[-2000:]}")
        most = 230 // max(1, (self._ranks - 1).bit_length())
        return Result(float(words[0]), int(words[1]), [], most, problem.bytes)

    def _end(self) -> None:
        """Closes the ranks' commands, so that the ranks end in order and mpirun waits for them: their processor time
        then counts as this benchmark's."""
        for fifo in self._fifos:
            fifo.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "MpiRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
