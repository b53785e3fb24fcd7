# SPDX-License-Identifier: Apache-2.0
"""The `atoll bench` sub-command."""

import os
import sys
from typing import Annotated

import typer

from atoll.bench.options import Options
from atoll.bench.sizes import parse_sizes

_OPERATIONS = "all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter, send or barrier."


def bench(
    operation: Annotated[str, typer.Argument(metavar="OP", help=_OPERATIONS)],
    sizes: Annotated[str, typer.Option(help="Bytes: FIRST..LAST doubling, FIRST..LAST*FACTOR, or a list.")] = "4..256M",
    dtype: Annotated[str, typer.Option(help="Type of the elements.")] = "float32",
    op: Annotated[str, typer.Option(help="Reduction: sum, avg, product, min, max, band, bor, bxor.")] = "sum",
    ranks: Annotated[int, typer.Option(min=1, help="Local processes to start (not under torchrun).")] = 2,
    layout: Annotated[str, typer.Option(help="Islands, one letter per rank: AAB. Sets the number of ranks.")] = "",
    device: Annotated[str, typer.Option(help="Devices of the ranks, one for all or one each: sim,sim,cpu.")] = "",
    backend: Annotated[str, typer.Option(help="The backend to measure.")] = "atoll",
    against: Annotated[
        str,
        typer.Option(
            help="A second backend, measured in turn in the same run: gloo; relay, the baseline through the host; "
            "inner, the library of the only island; or another backend of torch.distributed."
        ),
    ] = "",
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write all measurements to FILE.")] = "",
    expect_link: Annotated[str, typer.Option(help="Fail unless all links are shm, or tcp.")] = "",
    iters: Annotated[int, typer.Option(min=0, help="Calls per timed block; 0: choose automatically.")] = 0,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before the first timed block of a size.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Timed blocks of each size; results are medians over them.")] = 9,
    force_busy: Annotated[bool, typer.Option(help="Measure even on a busy machine; marks the output.")] = False,
    inject_fault: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Measure a collective: times and bandwidths as nccl-tests prints them, with every element checked.

    Starts local ranks, or runs as one rank under torchrun. Exits with 1 after wrong results, 3 after an unexpected
    link, 4 if the machine is busy."""
    from atoll.bench import operations, values, worker
    from atoll.bench.devices import split_devices

    launched = "RANK" in os.environ
    ranks = int(os.environ["WORLD_SIZE"]) if launched else len(layout) or ranks
    try:
        size_list, devices = parse_sizes(sizes), split_devices(device, ranks)
        values.check_supported(dtype, op)
        if operation not in operations.OPERATIONS:
            raise ValueError(f"operation {operation!r}: choose from {', '.join(operations.OPERATIONS)}")
        if expect_link not in ("", "shm", "tcp"):
            raise ValueError(f"link {expect_link!r}: choose shm or tcp")
        if against == backend:
            raise ValueError(f"--against {against}: must differ from --backend")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if layout and len(layout) != ranks:
        raise typer.BadParameter(f"layout {layout!r} names {len(layout)} ranks, but the job has {ranks}")
    if operation == "send" and ranks < 2:
        raise typer.BadParameter("send needs two ranks")
    options = Options(
        operation, size_list, dtype, op, ranks, devices, layout, backend, against, iters, warmup, rounds, json,
        expect_link, force_busy, inject_fault,
    )  # fmt: skip
    raise typer.Exit(worker.run(options) if launched else _run_locally(options))


def _run_locally(options: Options) -> int:
    from atoll.bench.launch import run_ranks

    return run_ranks([sys.executable, "-m", "atoll.bench.worker", options.to_json()], options.ranks)
