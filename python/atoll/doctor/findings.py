# SPDX-License-Identifier: Apache-2.0
"""Findings: problems and possible improvements of a job, judged from its ranks' facts and links, each with a fix."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from atoll.doctor.facts import Facts
from atoll.doctor.links import Measured, reason

LEVELS = PROBLEM, WARNING, NOTE = "problem", "warning", "note"
_MAX_DESCRIPTORS_PER_RANK = 16  # per peer, with some reserve
_OPEN_RAILS = re.compile(r" over (\d+) of (\d+) rails")
_FAR_SLOWER, _ENOUGH_LINKS = 4, 3
_OWN_DESCRIPTORS = 256  # used by Python, PyTorch and the program itself


@dataclass(frozen=True)
class Finding:
    """One finding. A "problem" prevents a job from working; a "warning" makes it slower, unsafe or fragile; a "note"
    does neither."""

    level: str
    what: str
    fix: str

    def __post_init__(self) -> None:
        if not self.fix.strip():
            raise ValueError(f"{self.level} without a fix: {self.what}")


def judge(facts: Sequence[Facts], links: Sequence[Measured], islands: Sequence[dict[str, Any]]) -> list[Finding]:
    """Returns all findings from the facts and links, in a fixed order."""
    return [
        *_versions(facts),
        *_libraries(facts, islands),
        *_not_ucx(facts, links),
        *_tcp_inside_a_machine(facts, links),
        *_rails(links),
        *_slow_links(links),
        *_interfaces(facts),
        *_key_file(facts),
        *_open_files(facts),
        *_processors(facts),
    ]


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns a text such as rank 3; ranks 0 2 3; ranks 0-7."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return "ranks " + " ".join(str(rank) for rank in ordered)


def by_value(facts: Sequence[Facts], value: Callable[[Facts], str]) -> dict[str, list[int]]:
    """Returns the ranks that share each value, in order of first rank."""
    found: dict[str, list[int]] = {}
    for each in facts:
        found.setdefault(value(each), []).append(each.rank)
    return found


def _values_text(values: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in values.items())


def _versions(facts: Sequence[Facts]) -> Iterator[Finding]:
    advice = {
        "atoll": (WARNING, "install the same release of atoll everywhere: releases may refuse each other's protocol"),
        "python": (WARNING, "use the same Python everywhere if ranks exchange objects: pickles may be incompatible"),
        "torch": (NOTE, "nothing to do: a group may have different torch versions, which different vendors need"),
    }
    for package, (level, fix) in advice.items():
        values = by_value(facts, lambda each, name=package: each.versions[name])  # type: ignore[misc]
        if len(values) > 1:
            yield Finding(level, f"{package} differs: {_values_text(values)}", fix)


def _libraries(facts: Sequence[Facts], islands: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Reports vendor libraries that differ inside an island. They may differ between islands, which the bridge
    joins."""
    for island in islands:
        values = by_value([facts[rank] for rank in island["ranks"]], lambda each: each.library or "none")
        if len(values) > 1:
            yield Finding(
                WARNING,
                f"the vendor library differs inside island {island['island']}: {_values_text(values)}",
                "install the same version on these ranks, or give them different labels with ATOLL_ISLAND",
            )


def _not_ucx(facts: Sequence[Facts], links: Sequence[Measured]) -> Iterator[Finding]:
    for link in links:
        # Even without a request: between hosts with RDMA.
        _, _, why = link.link.partition("(not UCX: ")
        if link.kind != "ucx" and (why or "ucx" in (facts[link.a].transport, facts[link.b].transport)):
            why = f": {why[:-1]}" if why else ", because one of them may not use it (ATOLL_TRANSPORT)"
            yield Finding(
                WARNING,
                f"pair {link.a}-{link.b} uses {link.kind}, not UCX{why}",
                "UCX_TLS and UCX_NET_DEVICES, if set, must leave UCX a path between the two: see ucx_info -d",
            )
        _, _, staged = link.link.partition(" (staged: ")
        if staged:
            yield Finding(
                WARNING,
                f"pair {link.a}-{link.b} stages its frames in UCX's own memory: {staged.partition(';')[0]}",
                "raise the limit of locked memory (ulimit -l)",
            )


def _tcp_inside_a_machine(facts: Sequence[Facts], links: Sequence[Measured]) -> Iterator[Finding]:
    pairs: dict[str, list[str]] = {}
    for link in links:
        a, b = facts[link.a], facts[link.b]
        if link.kind == "tcp" and a.machine == b.machine and "ucx" not in (a.transport, b.transport):
            pairs.setdefault(reason(link.kind, a, b), []).append(f"{link.a}-{link.b}")
    for why, names in pairs.items():
        if "ATOLL_TRANSPORT" in why:
            fix = "unset ATOLL_TRANSPORT, or set it to auto, to use shared memory"
        elif "ATOLL_HOST" in why:
            fix = "unset ATOLL_HOST, unless the ranks are meant to behave like several machines"
        else:
            fix = "give its containers one network namespace (such as --network host) to use shared memory"
        yield Finding(WARNING, f"TCP inside one machine, {_pairs_text(names)}: {why}", fix)


def _rails(links: Sequence[Measured]) -> Iterator[Finding]:
    for link in links:
        counts = _OPEN_RAILS.search(link.link)
        if counts and counts[1] != counts[2]:
            yield Finding(
                WARNING,
                f"pair {link.a}-{link.b} uses {counts[1]} of its {counts[2]} rails: {link.link}",
                "repair the path that is down, or remove its interface from ATOLL_RAILS",
            )


def _slow_links(links: Sequence[Measured]) -> Iterator[Finding]:
    """Reports links that are far slower than the others of their kind."""
    for kind in dict.fromkeys(link.kind for link in links):
        rates = {link: min(link.a_to_b, link.b_to_a) for link in links if link.kind == kind}
        usual = median(rates.values())
        slow = [link for link, rate in rates.items() if rate * _FAR_SLOWER < usual]
        if len(rates) < _ENOUGH_LINKS or not slow:
            continue
        worst = min(slow, key=lambda link: rates[link])
        fix = {
            "shm": "bind these ranks to separate cores, and run fewer other processes",
            "ucx": "check with ucx_info -d which device serves the pair, and choose a faster one with UCX_NET_DEVICES",
        }.get(
            kind,
            "check the path between these hosts (ethtool, the switch), or choose a faster interface with ATOLL_IFACE",
        )
        yield Finding(
            WARNING,
            f"{_pairs_text([f'{link.a}-{link.b}' for link in slow])} far slower than other {kind} links: "
            f"{rates[worst]:.2g} GB/s ({worst.a}-{worst.b}), where {usual:.2g} is usual",
            fix,
        )


def _pairs_text(names: Sequence[str]) -> str:
    shown = " ".join(names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{'pair' if len(names) == 1 else 'pairs'} {shown}{more}"


def _on_several_machines(facts: Sequence[Facts]) -> bool:
    return len({each.machine for each in facts}) > 1


def _interfaces(facts: Sequence[Facts]) -> Iterator[Finding]:
    if not _on_several_machines(facts):
        return
    unsure = [each for each in facts if len(each.interfaces) > 1 and not each.address]
    for names, ranks in by_value(unsure, lambda each: ", ".join(each.interfaces)).items():
        yield Finding(
            WARNING,
            f"{ranks_text(ranks)} could use several network interfaces: {names}",
            "set ATOLL_IFACE to the one that reaches the other hosts fastest, or ATOLL_RAILS to several",
        )


def _key_file(facts: Sequence[Facts]) -> Iterator[Finding]:
    without = [each.rank for each in facts if not each.key_file]
    if _on_several_machines(facts) and without:
        yield Finding(
            WARNING,
            f"ranks are on several hosts, and {ranks_text(without)} have no key file: the job's key is in the store",
            "(umask 077; openssl rand -hex 32 > atoll.key), copy it to every host, and set ATOLL_KEY_FILE to its path; "
            "with ATOLL_TLS=1 the traffic is also protected against reading and changes on the network",
        )


def _open_files(facts: Sequence[Facts]) -> Iterator[Finding]:
    need = _OWN_DESCRIPTORS + _MAX_DESCRIPTORS_PER_RANK * len(facts)
    few = [each for each in facts if 0 <= each.open_files[0] < need]
    for limit, ranks in by_value(few, lambda each: str(each.open_files[0])).items():
        yield Finding(
            WARNING,
            f"{ranks_text(ranks)} may open {limit} files at once, but {need} are advisable for {len(facts)} ranks",
            f"ulimit -n {max(4096, need)} before the start",
        )


def _processors(facts: Sequence[Facts]) -> Iterator[Finding]:
    machines: dict[str, list[Facts]] = {}
    for each in facts:
        machines.setdefault(each.machine, []).append(each)
    for members in machines.values():
        cores = set().union(*(each.cores for each in members))
        threads = sum(each.threads for each in members)
        if threads > len(cores):
            ranks = ranks_text([each.rank for each in members])
            threads_each = len(cores) // len(members)
            way_out = f"OMP_NUM_THREADS={threads_each}" if threads_each else "start fewer ranks on this machine"
            yield Finding(
                WARNING, f"{ranks} compute with {threads} threads on {len(cores)} cores of {members[0].host}", way_out
            )
        pinned = [(a, b) for a, b in combinations(members, 2) if a.cores == b.cores and len(a.cores) < len(cores)]
        for a, b in pinned[:1]:
            if len(a.cores) < a.threads + b.threads:
                yield Finding(
                    WARNING,
                    f"ranks {a.rank} and {b.rank} are bound to the same {len(a.cores)} cores of {a.host}",
                    "bind each rank to separate cores",
                )
