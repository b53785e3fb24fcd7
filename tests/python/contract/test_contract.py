# SPDX-License-Identifier: Apache-2.0
"""One contract for every backend of torch.distributed. Atoll fulfils it on CPUs and on simulated devices, and Gloo
where it has the operation, so the contract requires nothing specific to Atoll. What a backend lacks is listed in
contract_backends.py, and is tried, too: a row that no longer holds fails."""

import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
import torch
import torch.distributed as dist

import contract_errors
import contract_messages
import contract_moves
import contract_reductions
import contract_work
from contract_backends import EVERYWHERE, Lack, Under
from contract_member import Member
from support import BACKEND, Ranks, later

MODULES = [contract_reductions, contract_moves, contract_messages, contract_work, contract_errors]
PROPERTIES = [(module.__name__, each.__name__) for module in MODULES for each in module.PROPERTIES]
ASKED = [
    (place, name) if place.kept is None or name[1] in place.kept else later(place, name)
    for place in EVERYWHERE
    for name in PROPERTIES
    if name[1] not in place.not_asked
]


@pytest.fixture(scope="module")
def under(request: pytest.FixtureRequest) -> Iterator[tuple[Under, Ranks]]:
    place: Under = request.param
    environment = {BACKEND: place.backend, "ATOLL_SIM_DEVICES": str(len(place.layout))}
    ranks = Ranks(len(place.layout), list(place.layout), environment, [place.device] * len(place.layout))
    yield place, ranks
    ranks.stop()


def run_property(rank: int, size: int, module: str, name: str, untried: list[str]) -> dict[str, str]:
    me = Member(rank, size, untried)
    getattr(importlib.import_module(module), name)(me)
    # Not a barrier: Gloo's may raise the errors of earlier operations.
    dist.all_reduce(torch.zeros(1, device=me.device))
    return me.outcomes


def lacking(case: str, lacks: dict[str, Lack]) -> tuple[str, Lack] | None:
    return next((row for row in lacks.items() if fnmatchcase(case, row[0])), None)


def judge(case: str, said: list[str], row: tuple[str, Lack] | None) -> str:
    """Returns what is wrong with a case, given the outcomes of its ranks, or ""."""
    if row is None or row[1].said is None:
        return (
            "" if not any(said) else "\n".join(f"{case}, rank {rank}: {what}" for rank, what in enumerate(said) if what)
        )
    pattern, lack = row
    if not any(said):
        return f'{case}: it works, so the row "{pattern}" ({lack.reason}) can go'
    others = [what for what in said if what and not re.search(lack.said, what)]
    return f"{case}: expected {lack.said!r}, because {lack.reason}; met {others[0]}" if others else ""


@pytest.mark.parametrize(
    ("under", "name"),
    ASKED,
    ids=lambda value: value.name if isinstance(value, Under) else value[1],
    indirect=["under"],
)
def test_contract(under: tuple[Under, Ranks], name: tuple[str, str]) -> None:
    place, ranks = under
    size = ranks.size
    lacks = {pattern: lack for pattern, lack in place.lacks.get(name[1], {}).items() if lack.alone or size > 1}
    untried = [pattern for pattern, lack in lacks.items() if lack.said is None]
    outcomes = ranks.run(run_property, size, *name, untried)
    assert all(each.keys() == outcomes[0].keys() for each in outcomes)
    problems, used = [], set(untried)
    for case in outcomes[0]:
        row = lacking(case, lacks)
        used |= {row[0]} if row else set()
        problems.append(judge(case, [each[case] for each in outcomes], row))
    assert not any(problems), "\n".join(filter(None, problems))
    assert used == set(lacks), f"no such case: {sorted(set(lacks) - used)}"


def test_outcomes_are_judged() -> None:
    lack = ("SUM *", Lack("it cannot", "Invalid scalar type"))
    assert judge("SUM int16", ["", ""], None) == ""
    assert "rank 1: AssertionError" in judge("SUM int16", ["", "AssertionError: 3"], None)
    assert "can go" in judge("SUM int16", ["", ""], lack)
    assert judge("SUM int16", ["RuntimeError: Invalid scalar type"] * 2, lack) == ""
    assert "met AssertionError: 3" in judge(
        "SUM int16", ["AssertionError: 3", "RuntimeError: Invalid scalar type"], lack
    )
