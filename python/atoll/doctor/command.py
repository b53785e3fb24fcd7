# SPDX-License-Identifier: Apache-2.0
"""The `atoll doctor` sub-command."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.bench.sizes import parse_size
from atoll.doctor.options import Options


def doctor(
    ranks: Annotated[int, typer.Option(min=1, help="Local processes to start (not under torchrun).")] = 2,
    layout: Annotated[str, typer.Option(help="Islands, one letter per rank: AAB. Sets the number of ranks.")] = "",
    device: Annotated[
        str, typer.Option(help="auto, cpu, sim or an accelerator's type, or one per rank: cpu,sim,sim.")
    ] = "auto",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that each step may wait for other ranks.")] = 60,
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write everything to FILE; - prints it alone.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Also write a page with a heat map of the links.")] = "",
    schedule: Annotated[str, typer.Option(metavar="OP", help="Show each rank's schedule of this operation.")] = "",
    size: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Size of its tensor, such as 64M.")] = "64M",
    dtype: Annotated[str, typer.Option(help="Type of its elements.")] = "float32",
    rank: Annotated[int, typer.Option(help="With --schedule: show all steps of this rank.")] = -1,
    inject_fault: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Examine a job: its ranks, islands, links and backends, whether every collective is correct, and what to improve.

    Starts local ranks, or runs as one rank under torchrun. Exits with 1 if there is a problem."""
    launched = "RANK" in os.environ
    try:
        if launched:
            from atoll.doctor.store_board import number_in

            ranks = number_in("WORLD_SIZE")
        elif layout:
            ranks = len(layout)
        options = Options(ranks, layout, device, timeout, json, schedule, parse_size(size), dtype, rank, inject_fault,
                          html)  # fmt: skip
        _check(options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    from atoll.doctor import worker

    raise typer.Exit(worker.run(options) if launched else _run_locally(options))


def _check(options: Options) -> None:
    """Raises ValueError for options that contradict each other or do not fit the job."""
    from atoll.doctor import schedule, self_test

    ranks = options.ranks
    if options.layout and len(options.layout) != ranks:
        raise ValueError(f"layout {options.layout!r} names {len(options.layout)} ranks, but the job has {ranks}")
    devices = options.device.split(",")
    if "" in devices or len(devices) not in (1, ranks):
        raise ValueError(f"device {options.device!r} names {len(devices)} devices: give one, or one per rank ({ranks})")
    if options.schedule:
        if options.schedule not in schedule.OPERATIONS:
            raise ValueError(f"operation {options.schedule!r}: choose from {', '.join(schedule.OPERATIONS)}")
        if options.dtype not in schedule.DTYPES:
            raise ValueError(f"dtype {options.dtype!r}: choose from {', '.join(schedule.DTYPES)}")
        schedule.elements(options.schedule, options.bytes, options.dtype, ranks)
    if options.steps_of != -1 and not options.schedule:
        raise ValueError(f"--rank {options.steps_of} shows steps of a schedule: give --schedule too")
    if not -1 <= options.steps_of < ranks:
        raise ValueError(f"--rank {options.steps_of}: the job's ranks count from 0 to {ranks - 1}")
    if options.fault and options.fault not in self_test.FAULTS:
        raise ValueError(f"operation {options.fault!r}: choose from {', '.join(self_test.FAULTS)}")
    for option, path in (("--json", options.json_path), ("--html", options.html_path)):
        if os.environ.get("RANK", "0") == "0" and not Path(path).parent.is_dir():
            raise ValueError(f"{option} {path}: the folder {Path(path).parent} does not exist")


def _run_locally(options: Options) -> int:
    from atoll.bench.launch import run_ranks
    from atoll.doctor import worker

    command = [sys.executable, "-m", "atoll.doctor.worker", options.to_json()]
    status = run_ranks(command, options.ranks, worker.STEPS * (options.timeout + 10))
    if status > worker.PROBLEMS:
        typer.echo(f"Atoll: doctor could not finish: a rank ended with status {status}", err=True)
        return worker.PROBLEMS
    return status
