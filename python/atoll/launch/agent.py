# SPDX-License-Identifier: Apache-2.0
"""Torch elastic's agent with Atoll's output instead of its own, hooks for starts and failures of ranks, and attempt
numbers that are the same on all hosts."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from string import Template
from typing import Any

from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, _RendezvousExitOp
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from atoll._newer_torch import grace_seconds
from atoll.launch import LaunchError
from atoll.launch.output import STDERR, STDOUT, Copy, Output
from atoll.launch.processes import close_streams

OnStart = Callable[[int, list[Worker], dict[int, int]], None]
OnFailure = Callable[[RunResult, int], int]
_COLOURS = (36, 33, 35, 32, 34, 31)
_LEAVE_TIMEOUT_S = 5.0


class PipedLogs(LogsSpecs):
    """The log files of `config`, with the streams for the console passed through `output`. `islands` are the local
    ranks' islands, empty strings for ranks without one; it is read whenever ranks start."""

    def __init__(self, config: LaunchConfig, islands: Sequence[str], output: Output) -> None:
        super().__init__()
        self._inner = config.logs_specs or DefaultLogsSpecs()
        self._islands = islands
        self._output = output
        self._template = config.log_line_prefix_template or "[${role_name}${local_rank}]:"
        self._filters = {STDOUT: config.duplicate_stdout_filters, STDERR: config.duplicate_stderr_filters}

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]], only: int | None = None) -> LogsDest:
        """Opens the streams of all local ranks, or of one rank that restarts while others run."""
        found = self._inner.reify(envs)
        targets = [
            (STDOUT, found.stdouts, found.tee_stdouts, found.filtered_stdout),
            (STDERR, found.stderrs, found.tee_stderrs, found.filtered_stderr),
        ]
        for target, paths, tees, filtered in targets:
            for local_rank, path in paths.items():
                if only is not None and local_rank != only:
                    continue
                if not path:
                    paths[local_rank] = self._open(local_rank, target, envs[local_rank], [])
                elif tees.get(local_rank) == path:
                    copies = [Copy(path)]
                    if needles := self._filters[target]:
                        prefix = self._prefix(local_rank, envs[local_rank], True) or b""
                        copies.append(Copy(filtered, [needle.encode() for needle in needles], prefix))
                    paths[local_rank] = self._open(local_rank, target, envs[local_rank], copies)
                else:
                    self._output.remember_file(local_rank, target, path)
            tees.clear()
        return found

    def _open(self, local_rank: int, target: int, environment: dict[str, str], copies: list[Copy]) -> str:
        prefix = self._prefix(local_rank, environment, bool(copies))
        island = self._islands[local_rank]
        if prefix and island and os.isatty(target) and not os.environ.get("NO_COLOR"):
            colour = _COLOURS[list(dict.fromkeys(self._islands)).index(island) % len(_COLOURS)]
            prefix = b"\x1b[%dm%s\x1b[0m " % (colour, prefix.rstrip())
        return self._output.open(local_rank, target, prefix, copies)

    def _prefix(self, local_rank: int, environment: dict[str, str], teed: bool) -> bytes | None:
        """Returns the island's name and the rank; without islands, the prefix that torchrun would write."""
        if self._islands[local_rank]:
            return f"[{self._islands[local_rank]}:{environment['RANK']}] ".encode()
        if teed:
            names = {"role_name": environment["ROLE_NAME"], "rank": environment["RANK"], "local_rank": local_rank}
            return Template(self._template).safe_substitute(names).encode()
        return None if len(self._islands) == 1 else b""


class Agent(LocalElasticAgent):
    """Calls `on_start(attempt, workers, pids by local rank)` each time the ranks have started. After a failure,
    `on_failure(result, hosts)` returns with how many local ranks to restart; 0 ends the job here. A signal that arrives
    while the ranks are being stopped ends their grace period."""

    def __init__(
        self, spec: WorkerSpec, config: LaunchConfig, logs: PipedLogs, on_start: OnStart, on_failure: OnFailure
    ) -> None:
        super().__init__(spec, logs, config.start_method)
        self._shutdown_timeout = int(grace_seconds(config))
        self._on_start = on_start
        self._on_failure = on_failure
        self._has_grace = True
        self._failures = 0

    @property
    def hosts(self) -> int:
        """The number of commands in the current attempt, including this one; 0 before the first attempt."""
        return self._worker_group.group_world_size or 0

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        handler = _dynamic(worker_group.spec)
        if handler is not None:
            # Remaining hosts would keep the store of the last attempt, with its keys, on a host that may be gone.
            handler._bootstrap_store_info = None
        super()._rendezvous(worker_group)

    def _attempt(self) -> int:
        """The number of the attempt. It is the same on all hosts, whichever failed or joined: otherwise their ranks
        refuse each other."""
        handler = _dynamic(self._worker_group.spec)
        return self._failures if handler is None else handler._state_holder.state.round

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        attempt = self._attempt()
        left, self._remaining_restarts = self._remaining_restarts, worker_group.spec.max_restarts - attempt
        try:
            pids: dict[int, Any] = super()._start_workers(worker_group)
        finally:
            self._remaining_restarts = left
        self._on_start(attempt, worker_group.workers, pids)
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
                close_streams(handler)
            self._failures += 1
            ranks = self._on_failure(result, self.hosts)
            worker_group.spec.local_world_size = ranks or worker_group.spec.local_world_size
            self._remaining_restarts = 1 if ranks else 0
        return result

    def _exit_barrier(self) -> None:
        """Waits for the other commands; a command that is alone skips this, and does not need the store."""
        if self.hosts > 1:
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        grace = min(timeout, self._shutdown_timeout) if self._has_grace else 0
        try:
            if self._pcontext is not None:
                self._pcontext.close(death_sig, grace)
            super()._shutdown(death_sig)
        except SignalException:
            self._has_grace = False
            raise

    def leave(self) -> None:
        """Leaves the rendezvous, so that the other hosts continue without having to detect the loss of this one. Takes
        a few seconds at most."""
        handler = _dynamic(self._worker_group.spec)
        if handler is not None:
            handler._stop_heartbeats()
            with contextlib.suppress(RendezvousError):
                handler._op_executor.run(_RendezvousExitOp(), time.monotonic() + _LEAVE_TIMEOUT_S)


def _dynamic(spec: WorkerSpec) -> DynamicRendezvousHandler | None:
    """Returns the dynamic rendezvous, if it is one; that of Redis wraps it."""
    handler = getattr(spec.rdzv_handler, "inner", spec.rdzv_handler)
    return handler if isinstance(handler, DynamicRendezvousHandler) else None


def _address(parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Returns MASTER_ADDR and MASTER_PORT if the command line sets them; otherwise the rendezvous chooses them."""
    if parameters.backend != "static":
        return None, None
    address, port = parse_rendezvous_endpoint(parameters.endpoint.strip(), default_port=-1)
    if port == -1:
        raise LaunchError(f"--rdzv-endpoint={parameters.endpoint}: the port is missing: write HOST:PORT")
    return address, port


def run_agent(
    config: LaunchConfig,
    command: Sequence[str],
    logs: PipedLogs,
    on_start: OnStart,
    on_failure: OnFailure,
) -> RunResult | None:
    """Meets the other commands of the job, starts the local ranks, waits for them, and returns how they ended; None if
    the job was over before this command joined it. Raises torch elastic's exceptions: SignalException after a signal,
    an error of the rendezvous if it fails. If this command ends with failed ranks, the other commands end too, unless
    enough of them remain."""
    parameters = RendezvousParameters(
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, run_id=config.run_id, min_nodes=config.min_nodes,
        max_nodes=config.max_nodes, local_addr=config.local_addr, **config.rdzv_configs,
    )  # fmt: skip
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    try:
        address, port = _address(parameters)
        rendezvous = get_rendezvous_handler(parameters)
    except ValueError as error:
        raise LaunchError(f"--rdzv-backend={config.rdzv_backend}: {error}") from None
    spec = WorkerSpec(
        role=config.role, local_world_size=config.nproc_per_node, entrypoint=command[0], args=tuple(command[1:]),
        rdzv_handler=rendezvous, max_restarts=config.max_restarts, monitor_interval=config.monitor_interval,
        master_addr=address, master_port=port, local_addr=config.local_addr,
        event_log_handler=config.event_log_handler, numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters, virtual_local_rank=config.virtual_local_rank,
    )  # fmt: skip
    agent = Agent(spec, config, logs, on_start, on_failure)
    metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
    stays_open = False
    try:
        result: RunResult | None = agent.run()
        stays_open = result is not None and result.is_failed() and agent.hosts > config.min_nodes
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        return result
    except Exception as error:
        # A stopped command leaves the rendezvous open, so that another command can take its place.
        stays_open = isinstance(error, SignalException)
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if not stays_open:
            rendezvous.shutdown()
        elif config.max_nodes > 1:
            agent.leave()
