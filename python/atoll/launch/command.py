# SPDX-License-Identifier: Apache-2.0
"""The sub-commands `atoll run`, `atoll ps` and `atoll stop`."""

import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from atoll._tables import wide
from atoll.launch import LaunchError
from atoll.launch.jobs import Job, choose_jobs, running_jobs, stop_job

_PAGE_WIDTH = 1000

# Options and `--` are left to torchrun's parser and the script.
RUN_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def run(context: typer.Context) -> None:
    """Start a job over unlike islands: torchrun's options, and --island (see atoll run --help)."""
    from atoll.launch.run import run as run_job

    raise typer.Exit(run_job(context.args))


def ps(
    redis: Annotated[
        str, typer.Option(metavar="URL", help="List the jobs and members that this Redis server coordinates instead.")
    ] = "",
) -> None:
    """List the jobs that you started on this host with atoll run."""
    if redis:
        _print_members(redis)
        return
    try:
        jobs = running_jobs()
    except LaunchError as error:
        raise _failed("ps", error) from None
    table = _table("ID", "PID", "ISLANDS", "RANKS", "PIDS", "STATE", "AGE", "SCRIPT")
    for job in jobs:
        table.add_row(*_row(job))
    _print(table)


def stop(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The job; may be omitted if only one runs.")] = "",
    grace: Annotated[float, typer.Option(min=0, help="Seconds from SIGTERM to SIGKILL.")] = 10,
) -> None:
    """Stop a job that atoll run started on this host."""
    try:
        for job in choose_jobs(identifier or None):
            typer.echo(stop_job(job, grace))
    except LaunchError as error:
        raise _failed("stop", error) from None


def _failed(command: str, error: Exception) -> typer.Exit:
    print(f"atoll {command}: {error}", file=sys.stderr)
    return typer.Exit(1)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style=None)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _print(table: Table) -> None:
    wide(Console(highlight=False, markup=False), _PAGE_WIDTH).print(table)


def _print_members(url: str) -> None:
    from atoll.redis.members import rows

    table = _table("JOB", "RANK", "ISLAND", "DEVICE", "SCORE", "HOST", "PID", "ALIVE", "AGE")
    try:
        for job, created, cells in rows(url):
            table.add_row(job, *cells, _age(created))
    except (ValueError, RuntimeError) as error:
        raise _failed("ps", error) from None
    _print(table)


def _row(job: Job) -> list[str]:
    islands = " ".join(f"{name}:{count}" for name, count in job.islands.items())
    ranks = ",".join(str(worker.rank) for worker in job.workers)
    pids = ",".join(str(worker.pid) for worker in job.workers)
    return [job.id, str(job.pid), islands or "-", ranks or "-", pids or "-", job.state, _age(job.created), job.script]


def _age(created: float) -> str:
    seconds = max(0, int(time.time() - created))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60}m"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
