# SPDX-License-Identifier: Apache-2.0
"""A very large number of operations on four ranks: no result is wrong; memory, descriptors and threads do not grow.

SOAK_SEED and SOAK_CALLS choose those of the long run."""

import ctypes
import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import chaos_report
from atoll.bench import values
from atoll.bench.block import run_block
from atoll.bench.operations import OPERATIONS, Problem, make
from chaos_calls import Prepared, Side, Works
from chaos_ranks import MAX_PENDING, wait_for
from chaos_trial import COUNTS, LARGE, draw_call
from fault_jobs import Job, Me
from support import later

LAYOUTS = ("AAAA", "AABB", "ABAB", "ABCD", "aabb", "AAbB")
SIMULATED = "aabb"
GROUPS = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 3), (1, 2, 3))
CALLS = 100_000
WARM_UP = 8000  # on each layout in addition, until caches are full
SMALL = (1, 2, 61, 1009)
WHOLE = (0, 1)  # of these groups
LENDERS = ((), (0,), (1,), (0, 1))  # even and odd ranks
SAMPLES = 40  # measurements of a process, over its whole run
MANY_LARGE, FEW_LARGE = 0.2, 0.02  # of the calls while warming up, so that every page of the rings is touched; and then
MAX_GROWTH = 0.01
MAX_THREADS = 2  # a thread is added to those that complete works if all are busy, which is rare, and it stays
SEED = int(os.environ.get("SOAK_SEED", str(random.SystemRandom().getrandbits(31))))
TCP = {"ATOLL_TRANSPORT": "tcp"}


@dataclass
class Held:
    """Returns what a process holds, after it has returned free memory to the system."""

    megabytes: float
    descriptors: int
    threads: int


def look() -> Held:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Held(int(status["VmRSS"].split()[0]) / 1024, len(os.listdir("/proc/self/fd")), int(status["Threads"]))


def random_problem(rng: random.Random, device: str, counts: tuple[int, ...]) -> Problem:
    while True:
        operation, dtype, reduction = (
            rng.choice(list(names)) for names in (OPERATIONS, values.NUMBER_TYPES, values.REDUCTIONS)
        )
        try:
            values.check_supported(dtype, reduction)
        except ValueError:
            continue
        item = values.NUMBER_TYPES[dtype].dtype.itemsize
        return Problem(operation, rng.choice(counts) * item, dtype, reduction, device)


class Caller:
    """One rank's calls: half of them have many dtypes and run one after another, the others are of all kinds,
    including empty and pending ones."""

    def __init__(self, me: Me, seed: int, small: bool) -> None:
        import atoll

        self.small, self.large, self.rank = small, MANY_LARGE, me.rank
        self.rng, self.device = random.Random(seed), str(atoll.device())
        self.made = [dist.new_group(list(ranks), timeout=timedelta(seconds=60)) for ranks in GROUPS]
        self.sides = {
            number: Side(self.made[number], ranks, me.rank, self.device)
            for number, ranks in enumerate(GROUPS)
            if me.rank in ranks
        }
        self.pending: list[tuple[Prepared, Works]] = []

    def problem(self, device: str) -> Problem:
        problem = random_problem(self.rng, device, SMALL if self.small else COUNTS[1:])
        lenders = self.rng.choice(LENDERS)  # on all ranks; the buffers of some of them are in their arenas
        return replace(problem, arena=device == "cpu" and self.rank % 2 in lenders)

    def count(self) -> int:
        if self.small:
            return self.rng.choice((0, *SMALL))
        return self.rng.choice(LARGE if self.rng.random() < self.large else COUNTS)

    def call(self) -> None:
        on_device, rng = self.rng.random() < 0.5, self.rng
        if rng.random() < 0.5:
            problem, number = self.problem(self.device if on_device else "cpu"), rng.choice(WHOLE)
            wait_for(self.pending)
            block = run_block(make(problem, self.made[number]), 1)
            assert block.wrong == 0, f"wrong result: {block.wrong} elements: {problem}, {GROUPS[number]}"
            return
        number = rng.choice(range(len(GROUPS)))
        call = draw_call(rng, number, GROUPS[number], self.count())
        if number in self.sides:
            prepared = self.sides[number].prepare(call)
            self.pending.append((prepared, prepared.begin(call.asynchronous)))
            if not call.asynchronous or len(self.pending) == MAX_PENDING:
                wait_for(self.pending)


def operate(me: Me, seed: int, warm_up: int, calls: int, small: bool) -> None:
    if os.environ["ATOLL_DEVICE"] == "sim":
        import atoll.sim  # noqa: F401

    me.join(seconds=60)
    caller = Caller(me, seed, small)
    for _ in range(warm_up):
        caller.call()
    caller.large = FEW_LARGE
    held, begin = [], time.monotonic()
    for index in range(calls):
        if index % max(1, calls // SAMPLES) == 0:
            wait_for(caller.pending)
            held.append(look())
            me.tell("held", (index, time.monotonic() - begin))
        caller.call()
    wait_for(caller.pending)
    held.append(look())
    me.tell("done", (held, time.monotonic() - begin))
    dist.destroy_process_group()


def growth(held: list[Held]) -> dict[str, float]:
    """Returns the growth from the first quarter to the last."""
    first, last = held[: len(held) // 4], held[-(len(held) // 4) :]
    before, after = (statistics.mean(each.megabytes for each in looks) for looks in (first, last))
    return {
        "megabytes": after,
        "memory": after / before - 1,
        "descriptors": max(each.descriptors for each in last) - max(each.descriptors for each in first),
        "threads": max(each.threads for each in last) - max(each.threads for each in first),
    }


def run(
    folder: Path, layout: str, environment: dict[str, str], how_many: tuple[int, int], small: bool,
    say: Callable[[str], None],
) -> list[list[Held]]:  # fmt: skip
    """Returns what each rank held during its calls, after the first `how_many` calls that warm up."""
    folder.mkdir()
    warm_up, calls = how_many
    own = {rank: {"ATOLL_DEVICE": "sim" if letter.islower() else "cpu"} for rank, letter in enumerate(layout)}
    with Job(folder, operate, layout, (SEED, warm_up, calls, small), environment, own) as job:
        for sample in range(len(range(0, calls, max(1, calls // SAMPLES)))):
            index, seconds = job.wait_for("held", seconds=600)[0].details
            if sample % 10 == 0:
                say(f"soak: {layout} {environment.get('ATOLL_TRANSPORT', 'auto')}: {index} calls, {seconds:.0f} s")
        done = job.wait_for("done", seconds=600)
        job.wait_for("end")
        job.check_ends()
    return [done[rank].details[0] for rank in range(len(layout))]


@pytest.mark.verify
@pytest.mark.parametrize("layout", [later("ABAB"), "AAbB"])
def test_some_operations(tmp_path: Path, layout: str) -> None:
    """Small sizes only: large ones are too rare to fill the caches so early."""
    for held in run(tmp_path / "job", layout, {}, (300, 600), True, lambda text: None):
        found = growth(held)
        assert found["memory"] < 0.02, held
        assert found["descriptors"] <= 0, held
        assert found["threads"] <= MAX_THREADS, held


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_very_many_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = int(os.environ.get("SOAK_CALLS", str(CALLS)))
    places = [(layout, environment) for layout in LAYOUTS for environment in ({}, TCP)]
    places = [(layout, environment) for layout, environment in places if not environment or layout != SIMULATED]
    share, found = -(-calls // len(places)), list[dict[str, Any]]()
    begin = time.monotonic()

    def say(text: str) -> None:
        print(text, flush=True)

    with capsys.disabled():
        print(f"\nsoak: {share} calls on each of {len(places)} layouts, from seed {SEED}", flush=True)
        for number, (layout, environment) in enumerate(places):
            ranks = run(tmp_path / str(number), layout, environment, (WARM_UP, share), False, say)
            found += [
                {
                    "layout": layout,
                    "transport": environment.get("ATOLL_TRANSPORT", "auto"),
                    "rank": rank,
                    **growth(held),
                }
                for rank, held in enumerate(ranks)
            ]
    write(found, share * len(places), time.monotonic() - begin)
    grown = [
        each
        for each in found
        if abs(each["memory"]) > MAX_GROWTH or each["descriptors"] > 0 or each["threads"] > MAX_THREADS
    ]
    assert grown == []


def write(found: list[dict[str, Any]], calls: int, seconds: float) -> None:
    facts = chaos_report.frame(f"SOAK_SEED={SEED} make soak", SEED)
    warm_ups = WARM_UP * len({(each["layout"], each["transport"]) for each in found})
    facts |= {"calls": calls, "warm_up": WARM_UP, "warm_ups": warm_ups, "seconds": round(seconds)}
    facts |= {"rate": (calls + warm_ups) / seconds, "wrong": 0, "ranks": found}
    chaos_report.save("soak", facts)
    if calls >= CALLS:
        chaos_report.PAGES.joinpath("soak.md").write_text(page(facts))


def page(facts: dict[str, Any]) -> str:
    rows = []
    for layout, transport in dict.fromkeys((each["layout"], each["transport"]) for each in facts["ranks"]):
        ranks = [each for each in facts["ranks"] if (each["layout"], each["transport"]) == (layout, transport)]
        worst = max(ranks, key=lambda each: abs(each["memory"]))
        more = [str(max(each[key] for each in ranks)) for key in ("descriptors", "threads")]
        rows.append([layout, transport, f"{worst['megabytes']:.0f} MB", f"{worst['memory']:+.2%}", *more])
    layouts = {each["layout"] for each in facts["ranks"]}
    titles = ["islands", "transport", "memory", "its growth", "more descriptors", "more threads"]
    return f"""# Very many operations

{chaos_report.preamble(facts)}
{facts["calls"]} random operations on four ranks in {len(layouts)} layouts, the same in every run,
and {facts["warm_ups"]} before them that fill caches, in {facts["seconds"]} s: {facts["rate"]:.0f} a second,
of all kinds, sizes and dtypes, on the whole and on parts of the job, at once and later.
Every element of every result is compared with what it must be:
{facts["wrong"]} were wrong.

{chaos_report.results().table(titles, rows)}
Lower-case islands compute on simulated devices. What passes inside them is their library's, over connections of its
own, and AAbB crosses the bridge from a device over both transports: so {SIMULATED} runs over one. Growth is that of the
worst rank, from the mean of the first quarter of its calls to that of the last, after {facts["warm_up"]} calls until
caches are full. A thread more is one of those that complete works: another joins them when all are busy, seldom, and
stays; at most {MAX_THREADS} may.
"""
