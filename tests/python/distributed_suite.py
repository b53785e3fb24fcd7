# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own torch.testing._internal.distributed.distributed_test over Atoll.

    python distributed_suite.py [--islands A,B,A] [--gloo] [--list] [test_name ...]

Most tests of that file name the backends for which they hold, so Atoll stands in for Gloo: whatever Gloo must pass,
Atoll must. The ranks are processes that live for many tests. Prints a line per test and a summary; the exit code is 1
when a test failed. VERBOSE=1 lets the tests' own output through."""

import argparse
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WORLD_SIZE = 3
TEST_TIMEOUT_S = 150

# Not run, each for a reason.
NOT_RUN: dict[str, str] = {
    "test_ddp_logging_data_cpu": "compares what DDP logs about Gloo itself: sockets, transport, number of threads",
}

# What Gloo says in the tests' own words, and what Atoll says.
WORDS = {
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier": r"rank \1 did not reach it",
    r"Rank \d+ successfully reached monitoredBarrier, but received errors.*": r"monitored_barrier",
    r"^failed to pass monitoredBarrier": r"did not reach it",
    r"Rank \d+ timed out in monitoredBarrier": r"monitored_barrier .*timed out",
    r" \(Timed out\|closed\|timeout\) ": r"timed out",
}


def set_environment() -> None:
    """What distributed_test reads while it is imported."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD_SIZE), MASTER_ADDR="127.0.0.1", INIT_METHOD="file:///")
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def stand_in_for_gloo() -> None:
    """Makes torch.distributed create Atoll groups where Gloo is asked for."""
    import torch.distributed.distributed_c10d as c10d

    import atoll.backend

    backend_type = atoll._C.Backend
    backend_type._set_default_timeout = backend_type.set_timeout

    class IsAtoll(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, backend_type)

    class ProcessGroupGloo(metaclass=IsAtoll):
        def __new__(cls, store: Any, rank: int, size: int, timeout: Any) -> Any:
            settings = SimpleNamespace(
                store=store,
                group_rank=rank,
                group_size=size,
                timeout=timeout,
                group_id="gloo",
                global_ranks_in_group=[],
            )
            return atoll.backend.create(settings, None)

    c10d.ProcessGroupGloo = ProcessGroupGloo

    # In C++ a group of type GLOO is cast to Gloo's own class, so Atoll's are of the type they have in ordinary life.
    custom = c10d.ProcessGroup.BackendType.CUSTOM
    register = c10d.ProcessGroup._register_backend
    c10d.ProcessGroup._register_backend = lambda self, device, _type, backend: register(self, device, custom, backend)
    c10d.Backend.backend_type_map["gloo"] = custom


def suite() -> Any:
    """The class that holds the tests, adapted to Atoll's words."""
    from torch.testing._internal.distributed import distributed_test

    find_events = distributed_test.get_profiling_event

    def get_profiling_event(name: str, *arguments: Any, **options: Any) -> Any:
        events = find_events(re.sub(r"^gloo:", "atoll:", name), *arguments, **options)
        for event in events:
            event.name = re.sub(r"^atoll:", "gloo:", event.name)
        return events

    distributed_test.get_profiling_event = get_profiling_event

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def assertRaisesRegex(self, kind: Any, pattern: Any, *arguments: Any, **options: Any) -> Any:  # noqa: N802
            for theirs, ours in WORDS.items():
                pattern = re.sub(theirs, ours, pattern)
            return super().assertRaisesRegex(kind, pattern, *arguments, **options)  # noqa: PT027

    return Suite


def run_one(rank: int, name: str, folder: str, tests: Any) -> tuple[str, str]:
    """Runs one test on this rank as TestDistBackend does; the outcome and why."""
    import unittest
    from datetime import timedelta

    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test

    os.environ["TEMP_DIR"] = folder
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)  # some tests leave it set
    dist.set_debug_level_from_env()
    distributed_test.INIT_METHOD = f"file://{folder}/init_dir/shared_init_file"
    distributed_test.Barrier.barrier_id = 0
    case = tests(name)
    case.rank = rank
    case.file_name = f"{folder}/rendezvous"
    common_utils.set_rng_seed()
    try:
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
        dist.init_process_group(
            "gloo",
            init_method=case.init_method,
            world_size=WORLD_SIZE,
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        case._barrier()
        getattr(case, name)()
        if dist.is_initialized():
            case._barrier(timeout=30)
    except unittest.SkipTest as skip:
        return "skip", str(skip)
    except SystemExit as end:
        for skip in TEST_SKIPS.values():
            if skip.exit_code == end.code:
                return "skip", skip.message
        return "fail", f"the test ended the process with code {end.code}"
    except BaseException:
        return "fail", traceback.format_exc()
    finally:
        with contextlib.suppress(AssertionError, ValueError):
            dist.destroy_process_group()
    return "pass", ""


def serve(rank: int, environment: dict[str, str], gloo: bool, connection: Connection) -> None:
    os.environ.update(environment)
    set_environment()
    if not os.environ.get("VERBOSE"):  # the tests and the profiler say a lot
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    if gloo:
        from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

        tests: Any = type("Suite", (TestDistBackend, DistributedTest._DistTestBase), {})
    else:
        stand_in_for_gloo()
        tests = suite()
    while (request := connection.recv()) is not None:
        connection.send(run_one(rank, *request, tests))


def start_server() -> None:
    """Begins to import the tests, once, in the process that all ranks are forked from."""
    set_environment()
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch.testing._internal.distributed.distributed_test"]
    )
    forkserver.ensure_running()


class Workers:
    """The processes of all ranks. A test that fails or hangs costs them their lives."""

    def __init__(self, islands: list[str] | None, gloo: bool) -> None:
        self._islands = islands
        self._gloo = gloo
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def run(self, name: str) -> tuple[str, str]:
        if not self._processes:
            self._start()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for part in ("barrier", "test_dir", "init_dir"):
                (Path(folder) / part).mkdir()
            for connection in self._connections:
                connection.send((name, folder))
            answers = self._collect()
        bad = [f"rank {rank}: {why}" for rank, (outcome, why) in answers.items() if outcome == "fail"]
        if bad or len(answers) < WORLD_SIZE:
            self.kill()
            silent = sorted(set(range(WORLD_SIZE)) - set(answers))
            return "fail", "\n".join([*bad, *([f"no answer from ranks {silent}"] if silent else [])])
        return answers[0]

    def _collect(self) -> dict[int, tuple[str, str]]:
        answers = {}
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        deadline = time.monotonic() + TEST_TIMEOUT_S
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except EOFError:
                    self._processes[rank].join(5)
                    answers[rank] = ("fail", f"the process ended with code {self._processes[rank].exitcode}")
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        for rank in range(WORLD_SIZE):
            environment = {"ATOLL_ISLAND": self._islands[rank]} if self._islands else {}
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, environment, self._gloo, there))
            process.start()
            there.close()
            self._processes.append(process)
            self._connections.append(here)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._connections = [], []


@contextlib.contextmanager
def workers(islands: list[str] | None, gloo: bool) -> Iterator[Workers]:
    group = Workers(islands, gloo)
    try:
        yield group
    finally:
        group.kill()


def runnable_tests() -> tuple[list[str], int]:
    """Names of the tests that are not skipped by their decorators, and how many are."""
    set_environment()
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    names = [name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_")]
    skipped = [
        name for name in names if getattr(getattr(DistributedTest._DistTestBase, name), "__unittest_skip__", False)
    ]
    return sorted(set(names) - set(skipped)), len(skipped)


def run_all(
    names: list[str], islands: list[str] | None, report: Callable[[str], None], gloo: bool = False
) -> dict[str, list[str]]:
    """Names by outcome: "pass", "skip", "fail"."""
    outcomes: dict[str, list[str]] = {"pass": [], "skip": [], "fail": []}
    with workers(islands, gloo) as group:
        for name in names:
            if name in NOT_RUN:
                outcomes["skip"].append(name)
                report(f"not run: {name}: {NOT_RUN[name]}")
                continue
            began = time.monotonic()
            outcome, why = group.run(name)
            outcomes[outcome].append(name)
            if outcome == "fail":
                report(f"FAILED {name}\n{why}")
            else:
                report(f"{outcome} {name} {time.monotonic() - began:.1f} s {why}")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--islands", help="the ranks' labels, such as A,B,A")
    parser.add_argument("--gloo", action="store_true", help="run over Gloo itself, to compare")
    parser.add_argument("--list", action="store_true", help="print the tests that can run here and stop")
    parser.add_argument("names", nargs="*", help="tests to run (default: all)")
    arguments = parser.parse_args()
    start_server()
    known, skipped = runnable_tests()
    if arguments.list:
        print("\n".join(known))
        return 0
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"no such test, or skipped here: {', '.join(unknown)}")
    islands = arguments.islands.split(",") if arguments.islands else None
    outcomes = run_all(arguments.names or known, islands, lambda line: print(line, flush=True), arguments.gloo)
    skipped = len(outcomes["skip"]) + (0 if arguments.names else skipped)
    print(f"distributed_test: {len(outcomes['pass'])} passed, {len(outcomes['fail'])} failed, {skipped} skipped")
    return 1 if outcomes["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
