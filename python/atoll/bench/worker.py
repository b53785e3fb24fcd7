# SPDX-License-Identifier: Apache-2.0
"""One rank of a measurement. All ranks run the same steps; rank 0 decides and prints."""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from atoll.bench import devices, groups, links, machine, operations, table
from atoll.bench.block import Block, choose_calls, run_block
from atoll.bench.options import Options
from atoll.vendors import VendorError

GOOD, WRONG_RESULTS, BAD_USAGE, UNEXPECTED_LINK, BUSY = 0, 1, 2, 3, 4
_BLOCK_SECONDS = 0.02


@dataclass
class Session:
    options: Options
    groups: dict[str, dist.ProcessGroup]  # by backend
    control: dist.ProcessGroup  # for what ranks exchange between blocks
    device: torch.device

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def agree(self, value: Any) -> Any:
        """Returns rank 0's value on all ranks."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.control)
        return values


def start(options: Options) -> Session:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=r"barrier\(\)")  # it uses the current device, as it should
    rank = int(os.environ["RANK"])
    if options.layout:
        os.environ["ATOLL_ISLAND"] = options.layout[rank]
    device = devices.take_device(options.devices[rank] if options.devices else "")
    world = groups.make_default(options.backend)
    session = Session(options, {options.backend: world}, dist.new_group(backend="gloo"), device)
    types = session.collect(device.type)
    for name in options.backends:
        groups.check(name, options.operation, types)
    if options.against:
        session.groups[options.against] = groups.make_another(options.against, world)
    return session


def measure(session: Session, size: int) -> table.Row:
    options = session.options
    problem = operations.Problem(options.operation, size, options.dtype, options.reduction, str(session.device))
    contenders = {name: operations.make(problem, group) for name, group in session.groups.items()}
    blocks: dict[str, list[Block]] = {name: [] for name in contenders}
    calls: dict[str, int] = {}
    for name, contender in contenders.items():
        most = contender.most_calls
        for _ in range(max(1, options.warmup)):
            block = run_block(contender, 1)
        wanted = options.iterations or choose_calls(block.seconds, _BLOCK_SECONDS, most)
        calls[name] = session.agree(min(wanted, most))
    for turn in range(options.rounds):
        for name, contender in contenders.items():
            fault = options.fault and turn == 0 and session.rank == dist.get_world_size() - 1
            blocks[name].append(run_block(contender, calls[name], fault=fault))
    everybody = session.collect(blocks)
    first = contenders[options.backend]
    timings = [
        table.Timing.of_blocks(name, [rank[name] for rank in everybody], first.rounds_per_call) for name in contenders
    ]
    reduction = options.reduction if first.reduces else "none"
    return table.Row(first.bytes, first.count, options.dtype, reduction, first.bus_factor(), timings)


def check_quiet(session: Session) -> float:
    """Returns how many cores other processes use. Ends the run with BUSY on a busy machine unless it is forced."""
    used = session.agree(machine.cores_used_by_others() if session.rank == 0 else 0.0)
    if used > machine.BUSY_CORES and not session.options.force_busy:
        session.say(
            f"atoll bench: other processes use {used:.2f} cores of this machine, so times would mean nothing. "
            "Try again when it is idle, or use --force-busy, which marks the output."
        )
        raise SystemExit(BUSY if session.rank == 0 else GOOD)
    return float(used)


def print_header(
    session: Session, views: Sequence[links.RankLinks], places: Sequence[str], used: float
) -> dict[str, str | int | float]:
    facts = machine.describe()
    islands = links.describe_islands(views)
    session.say(f"# {facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}")
    session.say(f"# torch {torch.__version__}, Python {facts['python']}, one compute thread per rank")
    session.say(f"# {len(views)} ranks; {session.options.operation} with {session.options.backend}; islands {islands}")
    session.say(f"# devices: {', '.join(places)}")
    if used > machine.BUSY_CORES:
        session.say(f"# BUSY MACHINE: other processes used {used:.2f} cores before the start; do not quote these times")
    for line in table.heading(session.options.against):
        session.say(line)
    return facts


def measure_all(session: Session) -> int:
    options = session.options
    used = check_quiet(session)
    group = session.groups[options.backend]
    views = session.collect(links.of_this_rank(options.backend, group))
    places = session.collect(str(session.device))
    facts = print_header(session, views, places, used)
    load, own = machine.OthersLoad(), machine.own_seconds()
    rows = []
    for size in [0] if options.operation == "barrier" else options.sizes:
        rows.append(measure(session, size))
        session.say(table.line_of(rows[-1]))
    during = load.cores(sum(session.collect(machine.own_seconds() - own)))
    views = session.collect(links.of_this_rank(options.backend, group))
    surprises = links.unexpected(views, options.expect_link)
    wrong = sum(row.wrong for row in rows)
    late = [rank for rank, is_late in enumerate(session.collect(devices.oversubscribed(session.device))) if is_late]
    session.say(f"# links: {links.describe(views)}")
    session.say(f"# other processes used {during:.2f} cores during the run")
    if late:
        session.say(f"# OVERSUBSCRIBED: modelled times of ranks {late} mean nothing: this machine is too slow for them")
    for line in surprises:
        session.say(f"# FAILED: {line}")
    session.say(f"# FAILED: {wrong} wrong elements" if wrong else "# every element of every result was correct")
    if session.rank == 0 and options.json_path:
        document = {
            "machine": facts, "torch": torch.__version__, "operation": options.operation, "ranks": len(views),
            "devices": places, "oversubscribed": late,
            "islands": [view.island for view in views], "links": links.describe(views), "unexpected_links": surprises,
            "others_cores_before": used, "others_cores_during": during,
            "busy": max(used, during) > machine.BUSY_CORES, "wrong": wrong, "rows": [row.as_json() for row in rows],
        }  # fmt: skip
        Path(options.json_path).write_text(json.dumps(document, indent=1) + "\n")
    if wrong:
        return WRONG_RESULTS
    return UNEXPECTED_LINK if surprises else GOOD


def run(options: Options) -> int:
    """Returns the exit status of this rank; only rank 0 reports a failed measurement."""
    try:
        status = measure_all(start(options))
    except VendorError as error:
        print(f"atoll bench: {error}", file=sys.stderr)
        return BAD_USAGE
    except groups.UsageError as error:  # the same on all ranks
        if os.environ["RANK"] == "0":
            print(f"atoll bench: {error}", file=sys.stderr)
        return BAD_USAGE
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return status if int(os.environ["RANK"]) == 0 else GOOD


if __name__ == "__main__":
    sys.exit(run(Options.from_json(sys.argv[1])))
