# SPDX-License-Identifier: Apache-2.0
"""A trial, drawn from its seed: the ranks that take part, what they call, and the fault with its time."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

FAULTS = ("kill", "stop", "cut", "half_open", "store", "slow", "descriptors")
PHASES = {
    "kill": ("making", "before", "inside", "after", "destroying"),
    "stop": ("making", "before", "inside", "after", "destroying"),
    "cut": ("before", "inside", "after", "destroying"),
    "half_open": ("before", "inside", "after", "destroying"),
    "store": ("making", "before", "inside", "after", "destroying"),
    "slow": ("making", "before", "inside"),
    "descriptors": ("making", "before"),
}
VARIANTS = {"cut": ("end", "reset"), "half_open": ("both ways", "one way")}
LAYOUTS = ("AA", "AB", "AAA", "ABA", "AAB", "ABC", "AABB", "ABAB", "AABC", "AAABB", "ABCAB", "AAAABB", "ABABAB")
OPERATIONS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_flat", "reduce_scatter", "all_to_all", "gather",
    "scatter", "ring", "barrier",
)  # fmt: skip
COUNTS = (0, 1, 2, 61, 1009, 16_384, 65_537)
LARGE = (70_001, 300_007, 1_000_003)
DTYPES = ("float32", "float64", "int32", "int64", "bfloat16")
REDUCTIONS = ("SUM", "MAX", "MIN")
HEARTBEAT_S = 2.0
SLOW_HEARTBEAT_S = 20.0  # of jobs with a slow rank, which must not be given up
DEATH_S, SILENCE_S = 2.0, HEARTBEAT_S + 1.0  # what docs/running.md promises
MAKING_S = 6.0  # the timeout of groups whose creation is disturbed; only then is it known that a rank never came
WORKING_S = 60.0  # that of the others
LATE_S = 2.0  # from a group's timeout to its exception
WHOLE = 0  # the number of the group of all ranks


@dataclass(frozen=True)
class Call:
    """One operation that every rank of its group calls."""

    operation: str
    group: int
    count: int
    dtype: str
    reduction: str
    root: int
    asynchronous: bool
    on_host: bool  # on CPU tensors, whatever device the ranks have
    salt: int


@dataclass(frozen=True)
class Trial:
    """The description of a trial, which every rank gets."""

    seed: int
    fault: str
    phase: str
    layout: str  # a letter per rank: its island; those of lower-case letters compute on simulated devices
    hosts: str  # a letter per rank
    inner: bool  # whether islands on CPUs have a library of their own inside, Gloo
    victim: int
    peer: int  # the other end of the link that is cut
    step: int
    delay_s: float  # from the start of the phase to the fault, for phases that take time
    variant: str
    spare: int  # descriptors that are left
    groups: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...] = field(repr=False)
    transport: str = ""  # ATOLL_TRANSPORT, if the link that is cut is inside an island

    @property
    def size(self) -> int:
        return len(self.layout)

    @property
    def timeout_s(self) -> float:
        return (
            MAKING_S if (self.phase == "making" and self.fault != "slow") or self.fault == "descriptors" else WORKING_S
        )

    def describe(self) -> str:
        where = f" call {self.step}" if self.phase in ("before", "inside", "after") else ""
        what = f"{self.fault} ({self.variant}, with rank {self.peer})" if self.variant else self.fault
        links = f", hosts {self.hosts}" + (", Gloo inside" if self.inner else "")
        links += f", transport {self.transport}" if self.transport else ""
        return f"{what} of rank {self.victim} {self.phase}{where}, islands {self.layout}{links}"


def environments(trial: Trial) -> tuple[dict[str, str], dict[int, dict[str, str]]]:
    """Returns the environment of all ranks, and what each rank has in addition."""
    beat = SLOW_HEARTBEAT_S if trial.fault == "slow" else HEARTBEAT_S
    common = {"ATOLL_HEARTBEAT": str(beat)} | ({"ATOLL_INNER": "cpu:gloo"} if trial.inner else {})
    common |= {"ATOLL_TRANSPORT": trial.transport} if trial.transport else {}
    if len(trial.groups) > 1:  # whose asynchronous operations have no common order (docs/architecture.md)
        common["ATOLL_SIM_SERIAL"] = "0"
    own: dict[int, dict[str, str]] = {}
    for rank, (island, host) in enumerate(zip(trial.layout, trial.hosts, strict=True)):
        own[rank] = {"ATOLL_HOST": host, "ATOLL_DEVICE": "sim" if island.islower() else "cpu"}
    return common, own


def draw(seed: int) -> Trial:
    """Returns the trial of this seed; consecutive seeds have different faults."""
    rng = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    between = fault in ("cut", "half_open")
    phase = rng.choice(PHASES[fault])
    plain = rng.choice([layout for layout in LAYOUTS if not between or "B" in layout])
    simulated = {letter for letter in sorted(set(plain)) if rng.random() < 0.4}
    layout = "".join(letter.lower() if letter in simulated else letter for letter in plain)
    victim = rng.randrange(len(layout))
    others = [rank for rank in range(len(layout)) if layout[rank] != layout[victim]]
    peer = rng.choice(others) if others else -1
    groups = draw_groups(rng, len(layout), victim)
    step = rng.randint(1, 8)
    trial = Trial(
        seed, fault, phase, layout, draw_hosts(rng, layout, fault), rng.random() < 0.25 and fault != "half_open",
        victim, peer, step, draw_delay(rng, phase), rng.choice(VARIANTS.get(fault, ("",))), rng.randint(0, 14), groups,
        draw_calls(rng, groups, victim, step, fault, phase),
    )  # fmt: skip
    return inside_an_island(trial) if between else trial


def inside_an_island(trial: Trial) -> Trial:
    """Returns the trial, or a variant that cuts a link inside the victim's island instead. It draws from a generator
    of its own, so that everything else stays the same."""
    rng, layout, victim = random.Random(f"inside {trial.seed}"), trial.layout, trial.victim
    others = [rank for rank in range(trial.size) if rank != victim and layout[rank] == layout[victim]]
    if not others or has_library(trial, others) or rng.random() < 0.4:
        return trial
    transports = ("tcp",) if trial.fault == "half_open" else ("tcp", "auto")  # data in shared memory always arrives
    return replace(trial, peer=rng.choice(others), transport=rng.choice(transports))


def draw_hosts(rng: random.Random, layout: str, fault: str) -> str:
    """Draws one host, one per island, or one per rank; the simulated devices' library needs one per island."""
    kind = rng.choice(("islands", "ranks") if fault == "half_open" else ("one", "islands", "ranks"))
    if kind == "one":
        return "h" * len(layout)
    islands = [letter.lower() for letter in layout]
    if kind == "islands":
        return "".join(islands)
    return "".join(island if layout[rank].islower() else "uvwxyz"[rank] for rank, island in enumerate(islands))


def draw_delay(rng: random.Random, phase: str) -> float:
    return rng.uniform(0, {"making": 0.15, "destroying": 0.01}.get(phase, 0.02))


def draw_groups(rng: random.Random, size: int, victim: int) -> tuple[tuple[int, ...], ...]:
    all_ranks = tuple(range(size))
    groups = [all_ranks]
    if rng.random() < 0.4:
        groups.append(all_ranks)
    if size > 2 and rng.random() < 0.6:
        others = [rank for rank in all_ranks if rank != victim]
        groups.append(tuple(sorted([victim, *rng.sample(others, rng.randint(1, size - 2))])))
    return tuple(groups)


def draw_calls(
    rng: random.Random, groups: tuple[tuple[int, ...], ...], victim: int, step: int, fault: str, phase: str
) -> tuple[Call, ...]:
    """Draws the calls. After the fault all ranks call the same groups, and end with operations in which each rank
    waits for every other: one that no rank leaves before all have entered it, one with a message between each two,
    and one in which all learn the outcome."""
    whole = [number for number, ranks in enumerate(groups) if len(ranks) == len(groups[WHOLE])]
    calls = []
    for index in range(step + rng.randint(1, 6)):
        number = rng.choice(range(len(groups)) if index <= step else whole)
        large = phase == "inside" and index == step
        calls.append(draw_call(rng, number, groups[number], rng.choice(LARGE if large else COUNTS)))
    sums: dict[str, Any] = {"dtype": "float32", "reduction": "SUM", "root": 0, "on_host": False}
    last = ("all_reduce", "all_to_all", "all_reduce")
    calls += [Call(name, number, 1009, asynchronous=False, salt=1, **sums) for number in whole for name in last]
    if fault == "slow":  # at a hundredth of the speed, a few calls are enough
        calls = [call for index, call in enumerate(calls) if index < step + 4]
    return tuple(calls)


def draw_call(rng: random.Random, number: int, ranks: tuple[int, ...], count: int) -> Call:
    return Call(
        rng.choice(OPERATIONS), number, count, rng.choice(DTYPES), rng.choice(REDUCTIONS), rng.choice(ranks),
        rng.random() < 0.4, rng.random() < 0.2, rng.randrange(100),
    )  # fmt: skip


def has_reason_to_raise(trial: Trial) -> bool:
    """Returns whether every rank that still runs must end with an exception."""
    return trial.fault in ("kill", "stop", "cut", "half_open") and trial.phase in ("before", "inside", "after")


def has_library(trial: Trial, others: Iterable[int]) -> bool:
    """Returns whether a library connects the victim with other ranks of its island among these."""
    island = trial.layout[trial.victim]
    return (island.islower() or trial.inner) and any(
        trial.layout[rank] == island for rank in others if rank != trial.victim
    )


def is_heard_of(trial: Trial, keys: Iterable[str]) -> bool:
    """Returns whether the store holds everything that others wait for from the victim while groups are made, which
    are its entries of all its groups. Entries of libraries do not count."""
    held = list(keys)
    for number, ranks in enumerate(trial.groups):
        if trial.victim not in ranks:
            continue
        member = ranks.index(trial.victim)
        entry = re.compile(rf"/{number}/" + (f"up/{member}" if member else "table") + "$")
        if has_library(trial, ranks) or not any(entry.search(key) for key in held):
            return False
    return True


def limit_s(trial: Trial, is_heard: bool) -> float:
    """Returns the most seconds from the fault to an exception. A rank that the others do not know yet while groups
    are made can only be missed at the timeout."""
    if trial.fault == "descriptors" or (trial.phase == "making" and not is_heard):
        return trial.timeout_s + LATE_S
    return SILENCE_S if trial.fault in ("stop", "half_open") else DEATH_S
