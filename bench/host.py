# SPDX-License-Identifier: Apache-2.0
"""One host: all_reduce, all_gather and reduce_scatter against stock Gloo, Open MPI and what memory allows."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import peers
from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size, parse_sizes
from compare import compare, fastest, spread
from contenders import Contender, MpiRanks, Place, TorchRanks
from results import Settings, microseconds, ratio_text, say, table

TITLE = "one host against Gloo, Open MPI and the memory bound"
SIZES = parse_sizes("4,64,1K,4K,16K,64K,256K,1M,4M,16M,25M,64M,128M,256M")
IN_ARENA = "all_reduce in memory of atoll.empty"  # of Atoll; the others have ordinary memory
MEMORY_BOUND_FROM = 64 << 20  # smaller buffers stay in the caches
NAMES = {"atoll": "Atoll", "gloo": "Gloo", "ompi4": "Open MPI 4.1", "ompi5": "Open MPI 5.0"}


def measure(settings: Settings) -> dict[str, Any]:
    dram = peers.cxx_program("dram_bandwidth")
    mpis = [peers.open_mpi_4(), peers.open_mpi_5()]
    sizes = [4, 4096, 1 << 20] if settings.quick else SIZES
    parts = [all_reduce(settings, ranks, sizes, mpis, dram) for ranks in (2, 4)]
    parts += [
        _one_operation(settings, operation, large_sizes(settings)) for operation in ("all_gather", "reduce_scatter")
    ]
    return {"open_mpi": {mpi.name: mpi.version for mpi in mpis}, "parts": parts}


def large_sizes(settings: Settings) -> list[int]:
    return [1 << 16] if settings.quick else [size for size in SIZES if size >= 1 << 20]


def _rounds(settings: Settings, size: int) -> int:
    return settings.rounds(15 if size <= 1 << 20 else 9)


def all_reduce(
    settings: Settings, ranks: int, sizes: list[int], mpis: list[peers.OpenMpi], dram: Path, arena: bool = False
) -> dict[str, Any]:
    """Measures each size. `arena`: with Atoll's buffers in atoll.empty's memory."""
    rows = []
    with ExitStack() as stack:
        torch_ranks = stack.enter_context(TorchRanks([Place()] * ranks, settings.backends))
        variants = {mpi.name: _start_variants(stack, mpi, ranks) for mpi in mpis}
        for size in sizes:
            problem = Problem("all_reduce", size)
            contenders: dict[str, Contender] = {
                name: torch_ranks.contender(name, arena=arena and name == settings.backends[0])
                for name in settings.backends
            }
            chosen = {name: fastest(candidates, problem) for name, candidates in variants.items()}
            contenders |= {name: variants[name][choice] for name, choice in chosen.items()}
            bandwidths: list[dict[str, Any]] = []

            def before_round(samples: list[dict[str, Any]] = bandwidths) -> None:
                samples.append(peers.dram_bandwidth(dram))

            large = size >= MEMORY_BOUND_FROM
            row = compare(contenders, problem, _rounds(settings, size), before_round=before_round if large else None)
            row["open_mpi_settings"] = chosen
            if large:
                row |= _bound(bandwidths, ranks, size, row["us"][settings.backends[0]]["median"])
            rows.append(row)
            say(f"{IN_ARENA if arena else 'all_reduce'}, {ranks} ranks, {format_size(size)}: {_times(row)}")
        links = torch_ranks.ask("links", backend=settings.backends[0])
    kinds = sorted({kind for answer in links for kind in answer["kinds"].values()})
    return {"operation": IN_ARENA if arena else "all_reduce", "ranks": ranks, "links": kinds, "rows": rows}


def _start_variants(stack: ExitStack, mpi: peers.OpenMpi, ranks: int) -> dict[str, Contender]:
    """Returns the candidates that start and give right results here. Raises RuntimeError if none does."""
    running: dict[str, Contender] = {}
    for name, settings in mpi.candidates().items():
        contender = MpiRanks(mpi.program, mpi.launch(settings, ranks), ranks, {})
        try:
            if contender.block(Problem("all_reduce", 1 << 16), 2, False).wrong:
                raise RuntimeError("wrong results")
        except RuntimeError as error:
            say(f"{mpi.name}, {name}: left out ({str(error).strip().splitlines()[-1]})")
            contender.__exit__()
        else:
            running[name] = stack.enter_context(contender)
    if not running:
        raise RuntimeError(f"{mpi.name} does not run here")
    return running


def _bound(bandwidths: list[dict[str, Any]], ranks: int, size: int, us: float) -> dict[str, Any]:
    """Returns the bound: every rank reads and writes its buffer once, so algorithm bandwidth is at most BW_dram / (2
    ranks)."""
    best = spread([sample["best"] for sample in bandwidths])
    bound = best["median"] / (2 * ranks)
    reached = size / us * 1e-3
    return {"dram": bandwidths, "dram_gb_s": best, "bound_gb_s": bound, "bound_fraction": reached / bound}


def _one_operation(settings: Settings, operation: str, sizes: list[int]) -> dict[str, Any]:
    rows = []
    with TorchRanks([Place()] * 2, settings.backends) as ranks:
        contenders: Mapping[str, Contender] = {name: ranks.contender(name) for name in settings.backends}
        for size in sizes:
            rows.append(compare(contenders, Problem(operation, size), _rounds(settings, size)))
            say(f"{operation}, 2 ranks, {format_size(size)}: {_times(rows[-1])}")
    return {"operation": operation, "ranks": 2, "rows": rows}


def _times(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {microseconds(times['median'])}" for name, times in row["us"].items())


def report(document: dict[str, Any]) -> str:
    text = (
        "Float32 sums in place, through `torch.distributed` for Atoll and Gloo, from C for Open MPI, which runs with "
        "the fastest of its documented settings at each size. All are measured in turn in the same run; a ratio is "
        "the other's time divided by Atoll's in the same round: median, and in brackets the 10th to 90th percentile. "
        "Every element is checked.\n"
    )
    for part in document["parts"]:
        text += f"\n## {part['operation']}, {part['ranks']} ranks\n\n{_part_table(part)}"
    return text


def _part_table(part: dict[str, Any]) -> str:
    names = list(part["rows"][0]["us"])
    bounded = any("bound_fraction" in row for row in part["rows"])
    titles = ["size", *(NAMES.get(name, name) for name in names), "GB/s"]
    titles += [f"{NAMES.get(name, name)} / {NAMES.get(names[0], names[0])}" for name in names[1:]]
    titles += ["of the memory bound"] if bounded else []
    rows = []
    for row in part["rows"]:
        cells = [format_size(row["bytes"]), *(microseconds(row["us"][name]["median"]) for name in names)]
        cells.append(f"{row['bytes'] / row['us'][names[0]]['median'] * 1e-3:.2f}")
        cells += [ratio_text(row["ratio"][name]) for name in names[1:]]
        if bounded:
            fraction = row.get("bound_fraction")
            cells.append(f"{fraction:.0%} of {row['bound_gb_s']:.1f} GB/s" if fraction else "")
        rows.append(cells)
    return table(titles, rows)
