# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own torch.testing._internal.distributed.distributed_test over Atoll.

    python distributed_suite.py [--islands A,B,A] [--ranks 4] [--gloo] [--detail] [--sim] [--as nccl] [--list]
        [--json FILE] [test_name ...]

Most tests of that file name the backends for which they hold, so Atoll stands in for Gloo: whatever Gloo must pass,
Atoll must. With --as nccl it stands in for NCCL. --sim lets simulated devices stand in for CUDA's. --detail sets
TORCH_DISTRIBUTED_DEBUG=DETAIL, in which PyTorch wraps every group and compares the ranks' calls over Gloo. The ranks
are processes that live for many tests. Prints a line per test and a summary; the exit code is 1 when a test failed.
VERBOSE=1 lets the tests' own output through."""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RANKS = 3
TEST_TIMEOUT_S = 150

# Tests that are not run, each with its reason.
NOT_RUN: dict[str, str] = {
    "test_ddp_logging_data_cpu": "compares what DDP logs about Gloo itself: sockets, transport, number of threads",
}


@dataclass(frozen=True)
class Mode:
    """A way to run the tests. `name`: the backend whose tests are run, "gloo" or "nccl"."""

    ranks: int = RANKS
    islands: tuple[str, ...] = ()
    gloo: bool = False
    detail: bool = False
    sim: bool = False
    name: str = "gloo"

    @property
    def not_run(self) -> dict[str, str]:
        """Returns the tests that are left out, with the reason."""
        import distributed_on_sim

        on_sim = distributed_on_sim.not_run(self.name, self.ranks, len(set(self.islands))) if self.sim else {}
        return {**NOT_RUN, **on_sim}


NCCL_IS_ABSENT = "Test requires backend nccl to be available"  # with --as nccl only; Atoll is there

# Errors of Gloo that the tests expect, and what Atoll says instead.
WORDS = {
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier": r"rank \1 did not reach it",
    r"Rank \d+ successfully reached monitoredBarrier, but received errors.*": r"monitored_barrier",
    r"^failed to pass monitoredBarrier": r"did not reach it",
    r"Rank \d+ timed out in monitoredBarrier": r"monitored_barrier .*timed out",
    r" \(Timed out\|closed\|timeout\) ": r"timed out",
    r"caught collective operation timeout": r"[Tt]imed out",
}


def set_environment(mode: Mode) -> None:
    """Sets the variables that distributed_test reads while it is imported."""
    os.environ.update(BACKEND=mode.name, WORLD_SIZE=str(mode.ranks), MASTER_ADDR="127.0.0.1", INIT_METHOD="file:///")
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def stand_in(name: str) -> None:
    """Makes torch.distributed create Atoll groups where Gloo, or NCCL, is requested."""
    import torch
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    import atoll.backend

    backend_type = atoll._C.Backend
    backend_type._set_default_timeout = backend_type.set_timeout

    class IsAtoll(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, backend_type)

    class StandIn(metaclass=IsAtoll):
        Options = type("Options", (SimpleNamespace,), {"_timeout": c10d.default_pg_timeout})  # anything can be set

        def __new__(cls, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None) -> Any:
            settings = SimpleNamespace(
                store=store,
                group_rank=rank,
                group_size=size,
                timeout=timeout or options._timeout,
                group_id=name,
                global_ranks_in_group=[],
            )
            return atoll.backend.create(settings, None)

    if name == "nccl":
        dist.ProcessGroupNCCL = c10d.ProcessGroupNCCL = StandIn
        dist.is_nccl_available = c10d.is_nccl_available = lambda: True
    else:
        c10d.ProcessGroupGloo = StandIn
        wrap = c10d._create_process_group_wrapper
        gloo = torch._C._distributed_c10d.ProcessGroupGloo

        def wrap_with_gloo(*arguments: Any, **options: Any) -> Any:
            """Outside these tests the group that compares calls is Gloo's own."""
            c10d.ProcessGroupGloo = gloo
            try:
                return wrap(*arguments, **options)
            finally:
                c10d.ProcessGroupGloo = StandIn

        c10d._create_process_group_wrapper = wrap_with_gloo
    c10d.Backend.backend_type_map[name] = c10d.ProcessGroup.BackendType.CUSTOM


def register_as_custom() -> None:
    """C++ code casts a group of type GLOO to Gloo's own class, so Atoll's groups keep their usual type."""
    import torch.distributed.distributed_c10d as c10d

    custom = c10d.ProcessGroup.BackendType.CUSTOM
    register = c10d.ProcessGroup._register_backend
    c10d.ProcessGroup._register_backend = lambda self, device, _type, backend: register(self, device, custom, backend)


def suite(mode: Mode) -> Any:
    """Returns the class with the tests, adapted to Atoll's error messages."""
    from torch.testing._internal.distributed import distributed_test

    find_events = distributed_test.get_profiling_event

    def get_profiling_event(name: str, *arguments: Any, **options: Any) -> Any:
        if not name.startswith(f"{mode.name}:"):
            return find_events(name, *arguments, **options)
        events: list[Any] = []
        for maker in ("atoll", "simccl"):  # calls within one island are passed to its library
            title = maker + name.removeprefix(mode.name)
            events = events or find_events(title, *arguments, **options)
        for event in events:
            event.name = re.sub(r"^(atoll|simccl):", f"{mode.name}:", event.name)
        return events

    distributed_test.get_profiling_event = get_profiling_event

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def assertRaisesRegex(self, kind: Any, pattern: Any, *arguments: Any, **options: Any) -> Any:  # noqa: N802
            ours = pattern
            for their_words, our_words in WORDS.items():
                ours = re.sub(their_words, our_words, ours)
            if mode.detail or mode.name == "nccl":  # then Gloo itself is used, too, and may raise first
                ours = f"(?:{pattern})|(?:{ours})"
            return super().assertRaisesRegex(kind, ours, *arguments, **options)  # noqa: PT027

    return Suite


def run_one(rank: int, name: str, folder: str, tests: Any, mode: Mode) -> tuple[str, str]:
    """Runs one test on this rank as TestDistBackend does; returns the outcome and the reason."""
    import unittest
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test

    import distributed_on_sim

    os.environ["TEMP_DIR"] = folder
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)  # some tests leave it set
    if mode.detail:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
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
            mode.name,
            init_method=case.init_method,
            world_size=mode.ranks,
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        if mode.detail:
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            assert "Wrapper" in type(backend).__name__, f"{backend} is not wrapped"
        case._barrier()
        if mode.sim:
            distributed_on_sim.on_sim(getattr(case, name), rank)
        else:
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


def serve(rank: int, environment: dict[str, str], mode: Mode, connection: Connection) -> None:
    os.environ.update(environment)
    set_environment(mode)
    if not os.environ.get("VERBOSE"):  # the tests and the profiler print a lot
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    if mode.sim:
        import distributed_on_sim

        distributed_on_sim.prepare(mode.name)
    if mode.gloo:
        from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

        tests: Any = type("Suite", (TestDistBackend, DistributedTest._DistTestBase), {})
    else:
        for name in {mode.name, "nccl"} if mode.sim else {mode.name}:  # some of Gloo's tests of devices use NCCL, too
            stand_in(name)
        register_as_custom()
        tests = suite(mode)
    while (request := connection.recv()) is not None:
        connection.send(run_one(rank, *request, tests, mode))


def start_server(mode: Mode) -> None:
    """Starts the import of the tests, once, in the process that all ranks are forked from."""
    set_environment(mode)
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch.testing._internal.distributed.distributed_test"]
    )
    forkserver.ensure_running()


class Workers:
    """The processes of all ranks, which are replaced after a test that fails or hangs."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
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
        if bad or len(answers) < self._mode.ranks:
            self.kill()
            silent = sorted(set(range(self._mode.ranks)) - set(answers))
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
        for rank in range(self._mode.ranks):
            environment = {"ATOLL_ISLAND": self._mode.islands[rank]} if self._mode.islands else {}
            if self._mode.sim:
                environment |= {"ATOLL_DEVICE": f"sim:{rank}", "ATOLL_SIM_DEVICES": str(self._mode.ranks)}
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, environment, self._mode, there))
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
def workers(mode: Mode) -> Iterator[Workers]:
    group = Workers(mode)
    try:
        yield group
    finally:
        group.kill()


def runnable_tests(mode: Mode) -> tuple[list[str], int]:
    """Returns the names of the tests that their decorators do not skip, and the number of skipped ones."""
    set_environment(mode)
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    tests = DistributedTest._DistTestBase
    names = {name for name in dir(tests) if name.startswith("test_")}
    reasons = {name: getattr(getattr(tests, name), "__unittest_skip_why__", None) for name in names}
    skipped = {name for name, why in reasons.items() if why not in (None, NCCL_IS_ABSENT)}
    return sorted(names - skipped), len(skipped)


def run_all(names: list[str], mode: Mode, report: Callable[[str], None]) -> dict[str, list[str]]:
    """Runs the tests; returns their names by outcome: "pass", "skip", "fail"."""
    outcomes: dict[str, list[str]] = {"pass": [], "skip": [], "fail": []}
    with workers(mode) as group:
        for name in names:
            if name in mode.not_run:
                outcomes["skip"].append(name)
                report(f"not run: {name}: {mode.not_run[name]}")
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
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"how many ({RANKS})")
    parser.add_argument("--gloo", action="store_true", help="run over Gloo itself, to compare")
    parser.add_argument("--detail", action="store_true", help="with TORCH_DISTRIBUTED_DEBUG=DETAIL")
    parser.add_argument("--sim", action="store_true", help="with simulated devices in place of CUDA's")
    parser.add_argument("--as", dest="name", choices=["gloo", "nccl"], default="gloo", help="whose tests (gloo)")
    parser.add_argument("--list", action="store_true", help="print the tests that can run here and stop")
    parser.add_argument("--json", type=Path, help="write how many passed, failed and were skipped to this file")
    parser.add_argument("names", nargs="*", help="tests to run (default: all)")
    arguments = parser.parse_args()
    islands = tuple(arguments.islands.split(",")) if arguments.islands else ()
    if islands and len(islands) != arguments.ranks:
        parser.error(f"{len(islands)} labels of islands for {arguments.ranks} ranks")
    mode = Mode(arguments.ranks, islands, arguments.gloo, arguments.detail, arguments.sim, arguments.name)
    start_server(mode)
    known, skipped = runnable_tests(mode)
    if arguments.list:
        print("\n".join(known))
        return 0
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"no such test, or skipped here: {', '.join(unknown)}")
    outcomes = run_all(arguments.names or known, mode, lambda line: print(line, flush=True))
    skipped = len(outcomes["skip"]) + (0 if arguments.names else skipped)
    print(f"distributed_test: {len(outcomes['pass'])} passed, {len(outcomes['fail'])} failed, {skipped} skipped")
    if arguments.json:
        left_out = {name: why for name, why in mode.not_run.items() if name in outcomes["skip"]}
        counts = {"passed": len(outcomes["pass"]), "failed": outcomes["fail"], "skipped": skipped}
        arguments.json.write_text(json.dumps({**counts, "left_out": left_out}, indent=1) + "\n")
    return 1 if outcomes["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
