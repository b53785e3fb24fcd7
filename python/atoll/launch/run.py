# SPDX-License-Identifier: Apache-2.0
"""`atoll run`: torchrun with islands."""

import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, Worker
from torch.distributed.elastic.multiprocessing import SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousConnectionError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, determine_local_world_size, get_args_parser, parse_min_max_nnodes

from atoll._newer_torch import grace_seconds
from atoll.launch import LaunchError, failures
from atoll.launch.agent import PipedLogs, run_agent
from atoll.launch.containers import remove_containers
from atoll.launch.ending import EndingOnSignal, parse_signals
from atoll.launch.islands import Island, parse_island, place
from atoll.launch.jobs import JobRecord, WorkerState
from atoll.launch.output import STDERR, Output
from atoll.launch.processes import kill_groups, start_time
from atoll.launch.rank_starts import WORKER, Starts, plan_starts, write_starts
from atoll.launch.restarts import RESTARTS_OF_ELASTIC_JOBS, Restarts, cause
from atoll.launch.shrinking import add_options, check_options, run_shrinking
from atoll.launch.supervisor import Hooks

_USAGE_STATUS = 2
_MAX_ID_LENGTH = 100
_NO_JOB_ID = "none"  # torchrun's default of --rdzv-id
_LIMIT_WITHOUT_RANKS_S = 2.0
_LIMIT_AFTER_GRACE_S = 15.0
_SETTLE_S = 2.0
# By default torch elastic detects a lost host after 15 s, and waits 30 s for more hosts once there are enough.
_QUICK_RENDEZVOUS = {"keep_alive_interval": 1, "keep_alive_max_attempt": 6, "last_call_timeout": 5}
_ISLAND_HELP = """local ranks that form one island; repeat for each island. RANKS is how many (2: the next two) or which
(0-1+4). Options: device=cuda numbers the island's devices, device=cuda:3 names one; python=PATH is the island's
interpreter; env=NAME=VALUE sets a variable, and may be repeated; container=IMAGE runs the ranks under podman or docker.
Double a comma inside a value."""
_MIN_ISLANDS_HELP = """continue without an island of this command that has failed more than --max-restarts times, as
long as N islands remain. Without this option all islands must run."""


def make_parser() -> ArgumentParser:
    """Returns torchrun's parser with `--island` and the other options of `atoll run`."""
    parser = get_args_parser()
    parser.prog = "atoll run"
    parser.description = "Starts the ranks of a job on this host as torchrun does, and groups them into islands."
    for name in ("nproc_per_node", "max_restarts"):
        if f"PET_{name.upper()}" not in os.environ:
            parser.set_defaults(**{name: None})
    group = parser.add_argument_group("islands")
    group.add_argument(
        "--island",
        action="append",
        default=[],
        metavar="NAME:RANKS[,OPTION]...",
        help=_ISLAND_HELP,
    )
    group.add_argument("--min-islands", type=int, default=None, metavar="N", help=_MIN_ISLANDS_HELP)
    add_options(parser)
    return parser


class Run:
    """One `atoll run`: call() once, on the main thread."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._pids: list[int] = []
        self._runtime: str | None = None
        self._grace_s = 0.0
        self._is_unsettled = False
        _reject_unsupported(options)
        islands = [parse_island(text) for text in options.island]
        given = options.nproc_per_node
        local_ranks = None if given is None else _local_ranks(given)
        self._islands: list[Island] = place(islands, local_ranks) if islands else []
        self._local_ranks = sum(len(island.ranks) for island in self._islands) or local_ranks or 1
        options.nproc_per_node = str(self._local_ranks)
        self._id = options.rdzv_id if options.rdzv_id != _NO_JOB_ID else secrets.token_hex(3)
        least, self._most_hosts = _choose_rendezvous(options, self._id)
        if options.max_restarts is None:
            options.max_restarts = RESTARTS_OF_ELASTIC_JOBS if least < self._most_hosts else 0
        names = [island.name for island in self._islands]
        self._restarts = Restarts(options.max_restarts, names, options.min_islands, self._most_hosts)
        check_options(options, self._local_ranks)
        # Signals that the caller ignores stay ignored, as under nohup.
        wanted = parse_signals(options.signals_to_handle)
        self._signals = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
        options.signals_to_handle = ",".join(number.name for number in self._signals) or "SIGTERM"

    def call(self) -> int:
        """Runs the job and returns the exit status."""
        if self._local_ranks > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        sizes = {island.name: len(island.ranks) for island in self._islands}
        self._record = JobRecord(self._id, self._options.training_script, sizes)
        self._output = Output()
        with EndingOnSignal(self._signals, self._note_signal, self._limit_s, self._last_resort) as ending:
            try:
                self._choose_log_folder()
                return self._start_and_wait()
            except SignalException as error:
                ending.ignore_signals()
                self._say(f"ended by {error.sigval.name}: all ranks of this command were stopped")
                return 128 + int(error.sigval)
            finally:
                ending.ignore_signals()
                if self._is_unsettled:
                    self._kill_all()
                elif self._runtime and self._options.on_failure == "shrink":  # remove containers of killed ranks
                    remove_containers(self._runtime, self._label())
                self._output.close()
                self._record.remove()

    def _choose_log_folder(self) -> None:
        """Without `--log-dir`, chooses a folder that is kept if the user wants log files, or else one that is removed
        with the job."""
        if self._options.log_dir:
            return
        if (self._options.redirects, self._options.tee) == ("0", "0"):
            self._options.log_dir = str(self._record.folder / "logs")
        else:
            self._options.log_dir = tempfile.mkdtemp(prefix="atoll-logs-")
            self._say(f"logs are in {self._options.log_dir}")

    def _label(self) -> str:
        return f"{self._id}.{os.getpid()}"

    def _prepare(self) -> tuple[LaunchConfig, list[str], Starts]:
        try:
            config, program, arguments = config_from_args(self._options)
        except (AssertionError, ValueError, RuntimeError, OSError) as error:
            raise LaunchError(str(error)) from None
        with_python = not self._options.no_python
        folders = [Path(self._options.log_dir).absolute()]
        starts = plan_starts(self._islands, str(program), with_python, self._local_ranks, self._label(), folders)
        self._check_script(with_python)
        if config.rdzv_backend != "static":
            config.rdzv_configs = _QUICK_RENDEZVOUS | config.rdzv_configs
        file = self._record.folder / "starts.json"
        write_starts(starts, file)
        # Torch elastic expands "$" in arguments; the program's arguments are passed as the user wrote them.
        ours = [str(path).replace("$", "$$") for path in (WORKER, file)]
        return config, [sys.executable, "-I", "-S", *ours, "${local_rank}", *arguments], starts

    def _check_script(self, with_python: bool) -> None:
        script = self._options.training_script
        in_container = any(island.container for island in self._islands)
        if with_python and not self._options.module and not in_container and not os.path.exists(script):
            raise LaunchError(
                f"{script}: no such file: write the path of a Python script, -m and a module, or --no-python and a "
                "program"
            )

    def _start_and_wait(self) -> int:
        config, command, starts = self._prepare()
        self._runtime = starts.runtime
        self._grace_s = grace_seconds(config)
        self._starts = starts.ranks
        self._islands_of_ranks = [rank.island for rank in starts.ranks]
        logs = PipedLogs(config, self._islands_of_ranks, self._output)
        sizes = "".join(f", {island.name}: {len(island.ranks)}" for island in self._islands)
        self._say(f"job {self._id}: {self._local_ranks} local rank{'s' * (self._local_ranks > 1)}{sizes}")
        self._is_unsettled = True
        result: RunResult | None
        try:
            with _quiet_elastic():
                if self._options.on_failure == "shrink":
                    hooks = Hooks(self._say, self._note_ranks, self._islands_of_ranks)
                    result = run_shrinking(config, command, logs, self._output, self._options.min_ranks, hooks)
                else:
                    result = run_agent(config, command, logs, self._note_start, self._note_failure)
        except (RendezvousError, DistError, TimeoutError, ConnectionError) as error:
            self._say(self._no_meeting(config.rdzv_backend, _without_password(config.rdzv_endpoint), error))
            return 1
        except OSError as error:
            self._say(f"cannot continue: {error}")
            return 1
        self._is_unsettled = False
        return self._report(result)

    def _no_meeting(self, backend: str, endpoint: str, error: Exception) -> str:
        if isinstance(error, RendezvousClosedError):
            return f"job {self._id} is over: another of its commands has ended it"
        if backend == "redis" and isinstance(error, (RendezvousConnectionError, DistError)):
            # These errors name the server, the reason and the way out.
            what = "cannot continue" if self._pids else "cannot start"
            return f"job {self._id} {what}: {error}"
        if self._pids:
            return (
                f"the commands of job {self._id} have lost each other: {error}; restart them; the host of "
                f"--rdzv-endpoint={endpoint} must outlast the others"
            )
        way_out = (
            "another program uses that port: give all commands of the job another --master-port (or --rdzv-endpoint)"
            if "EADDRINUSE" in str(error)
            else "check that the command of the first host is running, that all have the same --master-addr and "
            "--master-port (or --rdzv-endpoint), and that no firewall blocks that port"
        )
        return f"the commands of job {self._id} could not meet at {endpoint}: {error}; {way_out}"

    def _report(self, result: RunResult | None) -> int:
        if result is None or not result.is_failed():
            return 0
        self._record.set_state("stopping")
        self._kill_all()
        self._output.close()
        if not result.failures:
            self._say(f"the ranks ended in state {result.state.value}")
            return 1
        ordered = failures.in_order(result.failures, self._output)
        with_hint = self._options.on_failure != "shrink"  # with shrink, the hint was given when the rank was lost
        report = failures.describe(ordered, self._islands_of_ranks, self._output, with_hint=with_hint)
        self._output.write(STDERR, report.encode())
        return failures.exit_status(ordered[0][1])

    def _note_start(self, attempt: int, workers: list[Worker], pids: dict[int, int]) -> None:
        kill_groups(self._pids)
        self._pids = list(pids.values())
        self._output.watch(pids)
        if attempt:
            self._say(
                f"attempt {attempt} of job {self._id}: {workers[0].world_size} ranks, {len(workers)} of them here"
            )
        self._record.set_workers([
            WorkerState(
                worker.global_rank, worker.local_rank, self._islands_of_ranks[worker.local_rank],
                pids[worker.local_rank], start_time(pids[worker.local_rank]) or 0,
            )
            for worker in workers
        ])  # fmt: skip

    def _note_failure(self, result: RunResult, hosts: int) -> int:
        """Returns the number of local ranks with which the job continues; 0: it ends."""
        self._kill_all()  # the containers too: a new rank needs the same device
        self._output.settle(_SETTLE_S)
        ordered = failures.in_order(result.failures, self._output)
        culprit = cause(ordered, self._output)
        verdict = self._restarts.after(None if culprit is None else self._islands_of_ranks[culprit[1].local_rank])
        if verdict.goes_on:
            what = "a rank of another command was lost" if hosts > 1 else "the ranks have lost each other"
            if culprit is not None:
                what = failures.headline(*culprit, self._islands_of_ranks)
            self._say(f"{what}: {verdict.why}")
        if verdict.left_out:
            self._leave_out(verdict.left_out)
        return len(self._starts) if verdict.goes_on else 0

    def _leave_out(self, island: str) -> None:
        """Leaves the island out of the next start; ranks of other islands keep their devices."""
        self._starts = [rank for rank in self._starts if rank.island != island]
        self._islands_of_ranks[:] = [rank.island for rank in self._starts]
        write_starts(Starts(self._starts), self._record.folder / "starts.json")
        self._record.leave_out(island)

    def _note_ranks(self, workers: list[WorkerState]) -> None:
        self._pids = [worker.pid for worker in workers]
        self._record.set_workers(workers)

    def _limit_s(self) -> float:
        """Returns how long the main thread may take to end after a signal; short without ranks, which it would wait
        for."""
        has_ranks = any(start_time(pid) is not None for pid in self._pids)
        return self._grace_s + _LIMIT_AFTER_GRACE_S if has_ranks else _LIMIT_WITHOUT_RANKS_S

    def _kill_all(self) -> None:
        kill_groups(self._pids)
        if self._runtime:
            remove_containers(self._runtime, self._label())

    def _note_signal(self, number: signal.Signals) -> None:
        self._say(f"got {number.name}: stopping the ranks; send it again to kill them")
        self._record.set_state("stopping")

    def _last_resort(self) -> None:
        self._kill_all()
        self._record.remove()

    def _say(self, text: str) -> None:
        self._output.write(STDERR, f"atoll run: {text}\n".encode())


def _reject_unsupported(options: Namespace) -> None:
    if not 0 < len(options.rdzv_id) <= _MAX_ID_LENGTH or not options.rdzv_id.isprintable() or "/" in options.rdzv_id:
        raise LaunchError(
            f"--rdzv-id={options.rdzv_id!r}: it is part of the job's folder names: write 1 to {_MAX_ID_LENGTH} "
            "characters without a slash"
        )
    for name in ("redirects", "tee"):
        try:
            Std.from_str(getattr(options, name))
        except ValueError:
            raise LaunchError(
                f"--{name}={getattr(options, name)}: write 1 (stdout), 2 (stderr) or 3 (both), or one of them for each "
                "local rank, such as 0:1,1:3"
            ) from None
    if options.run_path:
        raise LaunchError("--run-path is not supported, because each rank is a separate process: remove it")
    if options.logs_specs:
        raise LaunchError(f"--logs-specs={options.logs_specs}: use --log-dir, --redirects and --tee instead")
    if options.virtual_local_rank and any("device=" in text for text in options.island):
        raise LaunchError(
            "--virtual-local-rank shows each rank one device as number 0, but device= numbers them: remove one of them"
        )


def _without_password(endpoint: str) -> str:
    scheme, mark, rest = endpoint.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def _local_ranks(text: str) -> int:
    try:
        number: int = determine_local_world_size(text)
    except (ValueError, RuntimeError) as error:
        reason = str(error).rstrip(".")
        raise LaunchError(f"--nproc-per-node={text}: {reason}: write a number such as 2, or cpu or auto") from None
    if number < 1:
        raise LaunchError(f"--nproc-per-node={text}: a host has at least one rank")
    return number


def _choose_rendezvous(options: Namespace, identifier: str) -> tuple[int, int]:
    """Chooses the rendezvous as torchrun does: a job of one command uses a free port. Returns the minimum and the
    maximum number of hosts."""
    try:
        least, most = parse_min_max_nnodes(options.nnodes)
        if not 0 < least <= most:
            raise ValueError
    except (ValueError, RuntimeError):
        raise LaunchError(f"--nnodes={options.nnodes}: write a number such as 2, or a range such as 1:4") from None
    alone = options.rdzv_backend == "static" and not options.rdzv_endpoint and options.master_port is None and most == 1
    if options.standalone or alone:
        options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id = "c10d", "localhost:0", identifier
    if options.master_port is None:
        options.master_port = 29500
    return least, most


@contextlib.contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Leaves reports of failures to this command, unless LOGLEVEL enables those of torch elastic."""
    loggers = [
        logging.getLogger(f"torch.distributed.elastic.{name}")
        for name in ("multiprocessing.api", "agent.server.api", "agent.server.local_elastic_agent")
    ]
    levels = [logger.level for logger in loggers]
    if "LOGLEVEL" not in os.environ:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def run(arguments: Sequence[str]) -> int:
    """Runs `atoll run` with these arguments and returns its exit status: that of the rank that failed first, 128 plus
    the number of a signal, or 2 for a command that cannot be carried out."""
    options = make_parser().parse_args(list(arguments))
    try:
        return Run(options).call()
    except LaunchError as error:
        print(f"atoll run: {error}", file=sys.stderr)
        return _USAGE_STATUS
