# SPDX-License-Identifier: Apache-2.0
"""`atoll run --on-failure=shrink`: its options, and a job on one host with its store in this command or in Redis."""

import secrets
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.launcher.api import LaunchConfig

from atoll.launch import LaunchError
from atoll.launch.agent import PipedLogs
from atoll.launch.output import Output
from atoll.launch.supervisor import Hooks, Meeting, Supervisor
from atoll.recovering.notices import SUPERVISOR

_HOST = "127.0.0.1"
_REDIS = "redis"
_STORE_TIMEOUT = timedelta(seconds=60)


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("lost ranks")
    group.add_argument(
        "--on-failure",
        choices=["restart", "shrink"],
        default="restart",
        help="what to do when a rank fails: restart all ranks, at most --max-restarts times; or, for programs with "
        "atoll.ElasticTrainer on one host, shrink: continue without it, and restart and readmit at most --max-restarts "
        "lost ranks",
    )
    group.add_argument(
        "--min-ranks", type=int, default=1, metavar="N", help="with --on-failure=shrink: fewer ranks end the job"
    )


def check_options(options: Namespace, local_ranks: int) -> None:
    """Raises LaunchError for options that do not fit a job that shrinks. The rendezvous must have been chosen."""
    if options.on_failure != "shrink":
        if options.min_ranks != 1:
            raise LaunchError(f"--min-ranks={options.min_ranks} needs --on-failure=shrink: add that, or remove it")
        return
    if not 0 < options.min_ranks <= local_ranks:
        raise LaunchError(f"--min-ranks={options.min_ranks}: the job has {local_ranks} ranks: write 1 to {local_ranks}")
    is_in_redis = options.rdzv_backend == _REDIS and options.nnodes in ("1", "1:1")
    if not is_in_redis and (options.rdzv_backend, options.rdzv_endpoint) != ("c10d", "localhost:0"):
        raise LaunchError(
            "--on-failure=shrink works on one host: remove --nnodes, --master-addr, --master-port and --rdzv-* (except "
            "for --rdzv-backend=redis), or use --on-failure=restart for several hosts"
        )
    if options.min_islands is not None:
        raise LaunchError(
            f"--min-islands={options.min_islands} works only with --on-failure=restart: use --min-ranks, or remove it"
        )
    if options.virtual_local_rank:
        raise LaunchError("--virtual-local-rank works only with --on-failure=restart: remove it")


def run_shrinking(
    config: LaunchConfig, command: Sequence[str], logs: PipedLogs, output: Output, least: int, hooks: Hooks
) -> RunResult:  # fmt: skip
    """Starts the local ranks, keeps the remaining ranks running together, and returns how the job ended."""
    try:
        meeting = _in_redis(config) if config.rdzv_backend == _REDIS else _in_launcher()
    except ValueError as error:
        raise LaunchError(f"--rdzv-backend={config.rdzv_backend}: {error}") from None
    return Supervisor(config, command, logs, output, least, hooks, meeting).run()


def _in_launcher() -> Meeting:
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    listening = dist.TCPStore(_HOST, store.port, is_master=False, timeout=_STORE_TIMEOUT)
    environment = {
        "MASTER_ADDR": _HOST, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        SUPERVISOR: f"tcp://{_HOST}:{store.port}",
    }  # fmt: skip
    return Meeting(store, listening, environment)


def _in_redis(config: LaunchConfig) -> Meeting:
    """Raises ValueError for an invalid endpoint, and if a job of this name is already running."""
    from atoll.redis import elastic
    from atoll.redis.store import RedisStore, beside, with_options

    url, job = elastic.job_at(config.rdzv_endpoint, config.run_id, hosts=1)
    timeout = elastic.read_timeout(config.rdzv_configs)
    # Only one command may hold the name. Its ranks write beside it, where earlier jobs of this name may have left data.
    name = RedisStore(with_options(url, job=job, rank=0, world_size=1), timeout)
    own = with_options(url, job=f"{job}/{secrets.token_hex(3)}")
    store = RedisStore(own, timeout)
    with socket.create_server((_HOST, 0)) as listener:  # for code that needs an address
        port = listener.getsockname()[1]
    environment = {
        "MASTER_ADDR": _HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False",
        SUPERVISOR: own, "ATOLL_STORE": beside(own, "0"),
    }  # fmt: skip
    return Meeting(store, RedisStore(own, timeout), environment, name)
