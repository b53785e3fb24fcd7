# SPDX-License-Identifier: Apache-2.0
"""Tensors of every kind, in each argument of each operation, on one rank or all, give the right values, or an error
on every rank at once and a group that goes on."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import tensor_calls
import tensor_more_calls
import torch
import torch.distributed as dist
from tensor_calls import Operation, Setting
from tensor_kinds import KINDS, SKIPPED, Kind

import support
from support import Ranks

OPERATIONS = [*tensor_calls.OPERATIONS, *tensor_more_calls.OPERATIONS]
PLACES = [(layout, device) for device in ("cpu", "sim") for layout in ("A", "AB", "AAA", "ABA")]
# The kinds that `make test` has on each device.
SAMPLE = {"cpu": ("negated", "expanded"), "sim": ("conjugated", "resized away")}
"""On every change, in one layout; everything with `make verify`."""
AT_ONCE_S = 5.0
LIMIT = timedelta(seconds=20)

Outcomes = dict[str, tuple[float, str]]
"""For each case: the seconds that it took, and what went wrong, or ""."""


@pytest.fixture(scope="module")
def members(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    layout, device = request.param
    ranks = Ranks(len(layout), list(layout), {"ATOLL_SIM_DEVICES": "3"}, [device] * len(layout))
    yield ranks
    ranks.stop()


def refusal(kind: Kind, operation: Operation, role: str, rank: int, size: int) -> str:
    """Returns the error that the rank must raise for a tensor of the kind in that role, "" for none."""
    reads = role in ("input", "both") and operation.reads(rank, size)
    writes = role in ("output", "both") and operation.writes(rank, size)
    if role != "both" and not (reads or writes):
        return ""  # the rank has no such tensor
    instead = kind.said(operation.name)
    if instead is not None:
        return instead
    if kind.views_as_real and operation.looks_at_pairs:
        return "view_as_real"
    if kind.is_unwrapped and role == operation.lists_of_lists:
        return "without memory"
    if reads and kind.no_input:
        return kind.no_input
    return kind.no_output if writes else ""


def cases(kind: Kind, size: int, told: bool) -> Iterator[tuple[str, Operation, str, bool, list[str]]]:
    """Yields cases, the same on all ranks: name, operation, the arguments that are of the kind, whether they are on
    every rank or only on the last, and each rank's error. With `told` only cases in which ranks learn of a refusal
    from others, otherwise the rest."""
    for operation in OPERATIONS:
        if size < operation.smallest or kind.said(operation.name) == SKIPPED:
            continue
        for role in operation.roles:
            for everywhere in (True, False)[: 2 if size > 1 else 1]:
                # A sparse and a dense tensor in one sum are a disagreement of the ranks, which ends their group.
                if kind.name == "COO" and kind.said(operation.name) == "" and role == "both" and not everywhere:
                    continue
                odd = [everywhere or rank == size - 1 for rank in range(size)]
                said = [refusal(kind, operation, role, rank, size) if odd[rank] else "" for rank in range(size)]
                is_told = any(said) and (operation.waits or not all(said))
                if told and operation.waits:
                    continue  # its later messages, which others wait for, are never sent
                if is_told is told:
                    where = "all" if everywhere else "last"
                    yield f"{operation.name}, {role}, {where}", operation, role, everywhere, said


def tried(setting: Setting, operation: Operation) -> str:
    try:
        pairs = [(setting.read(tensor), wanted) for tensor, wanted in operation.run(setting)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(f"{a.tolist()} instead of {b.tolist()}" for a, b in pairs if not torch.equal(a, b))


def sum_of_ones(group: dist.ProcessGroup) -> str:
    try:
        ones = torch.ones(2, device=support.device())
        dist.all_reduce(ones, group=group)
        found = ones.cpu()  # an island's library may have failed by now
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if bool((found == group.size()).all()) else f"the sum of ones is {found.tolist()}"


def run_cases(rank: int, size: int, number: int, told: bool) -> Outcomes:
    kind, device = KINDS[number], support.device()
    if device == "sim":
        torch.accelerator.set_device_index(rank)
    group = dist.new_group(timeout=LIMIT)
    outcomes = {}
    for name, operation, role, everywhere, said in cases(kind, size, told):
        begin = time.monotonic()
        wrong = tried(Setting(rank, size, device, kind, role, everywhere, group), operation)
        outcomes[name] = time.monotonic() - begin, wrong
        then = sum_of_ones(group)
        outcomes[f"{name}, then"] = 0.0, then
        # A device's library may have started what a rank has refused; not all ranks know yet that the group has ended.
        if then or (any(said) and (operation.leaves_messages or device == "sim")):
            dist.destroy_process_group(group)
            group = dist.new_group(timeout=LIMIT)
    dist.destroy_process_group(group)
    return outcomes


def problems(kind: Kind, outcomes: list[Outcomes], told: bool) -> Iterator[str]:
    for name, _, _, _, words in cases(kind, len(outcomes), told):
        for rank, outcome in enumerate(outcomes):
            seconds, said = outcome[name]
            wanted = words[rank]
            is_right = re.search(wanted, said) and " instead of " not in said if wanted else not said
            if any(words) and not wanted:  # it gets some error, unless it has done its part before, as a root may
                is_right = " instead of " not in said
            if not is_right or seconds > AT_ONCE_S:
                yield f"{name}, rank {rank}, {seconds:.1f} s: {said[:300] or 'nothing'}; expected {wanted!r}"
            then = outcome[f"{name}, then"][1]
            # An operation that the library of an island of devices has started cannot be withdrawn, and ends the group.
            if then and not (any(words) and "library" in then):
                yield f"{name}, then, rank {rank}: {then[:200]}"


def check(ranks: Ranks, kind: Kind, told: bool) -> None:
    outcomes = ranks.run(run_cases, ranks.size, KINDS.index(kind), told)
    found = list(problems(kind, outcomes, told))
    assert not found, "\n".join(found)


def on_places(told: bool) -> pytest.MarkDecorator:
    rows = []
    for place in PLACES:
        for kind in KINDS:
            if place[1] not in kind.devices or not any(True for _ in cases(kind, len(place[0]), told)):
                continue
            is_sample = place[0] == "ABA" and kind.name in SAMPLE[place[1]]
            marks = [] if is_sample else [pytest.mark.verify]
            rows.append(pytest.param(place, kind, marks=marks, id=f"{place[0]}-{place[1]}-{kind.name}"))
    return pytest.mark.parametrize(("members", "kind"), rows, indirect=["members"])


# Proves D-8.
@on_places(told=False)
def test_right_or_refused_by_all(members: Ranks, kind: Kind) -> None:
    check(members, kind, told=False)


# Proves D-8.
@on_places(told=True)
def test_refused_by_some_is_an_error_on_all(members: Ranks, kind: Kind) -> None:
    check(members, kind, told=True)
