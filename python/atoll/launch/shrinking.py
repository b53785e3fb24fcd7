# SPDX-License-Identifier: Apache-2.0
"""`atoll run --on-failure=shrink`: its options, and a job of one host with a store of its own."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.launcher.api import LaunchConfig

from atoll.launch import LaunchError
from atoll.launch.agent import PipedLogs
from atoll.launch.output import Output
from atoll.launch.supervisor import Hooks, Supervisor

_HOST = "127.0.0.1"
_STORE_TIMEOUT = timedelta(seconds=60)


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("lost ranks")
    group.add_argument(
        "--on-failure",
        choices=["restart", "shrink"],
        default="restart",
        help="what happens when a rank fails: all are stopped and, while --max-restarts allows, started again; or, for "
        "programs with atoll.Recovering on one host, the others go on without it, and --max-restarts is how many lost "
        "ranks are started again and taken in",
    )
    group.add_argument(
        "--min-ranks", type=int, default=1, metavar="N", help="with --on-failure=shrink: fewer ranks end the job"
    )


def check_options(options: Namespace, local_ranks: int) -> None:
    """Raises LaunchError for what a job that shrinks cannot have. The rendezvous must have been chosen."""
    if options.on_failure != "shrink":
        if options.min_ranks != 1:
            raise LaunchError(
                f"--min-ranks={options.min_ranks} goes with --on-failure=shrink: add that, or leave it out"
            )
        return
    if not 0 < options.min_ranks <= local_ranks:
        raise LaunchError(f"--min-ranks={options.min_ranks}: the job has {local_ranks}: write 1 to {local_ranks}")
    if (options.rdzv_backend, options.rdzv_endpoint) != ("c10d", "localhost:0"):
        raise LaunchError(
            "--on-failure=shrink works on one host: leave --nnodes, --master-addr, --master-port and --rdzv-* out, or "
            "take --on-failure=restart for several hosts"
        )
    if options.min_islands is not None:
        raise LaunchError(
            f"--min-islands={options.min_islands} is for --on-failure=restart alone: write --min-ranks, or leave it out"
        )
    if options.virtual_local_rank:
        raise LaunchError("--virtual-local-rank is for --on-failure=restart alone: leave it out")


def run_shrinking(
    config: LaunchConfig, command: Sequence[str], logs: PipedLogs, output: Output, least: int, hooks: Hooks
) -> RunResult:  # fmt: skip
    """Starts the local ranks and sees to it that those that are left go on together; how the job ended."""
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    listening = dist.TCPStore(_HOST, store.port, is_master=False, timeout=_STORE_TIMEOUT)
    return Supervisor(config, command, logs, output, least, hooks, store, (_HOST, store.port), listening).run()
