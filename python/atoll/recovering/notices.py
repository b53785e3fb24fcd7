# SPDX-License-Identifier: Apache-2.0
"""What ranks and their supervisor tell each other through the store of `atoll run --on-failure=shrink`.

A rank posts notices. One that is ready for a group waits for the answer: the roster of the group that it belongs to
from then on. Whoever is on a roster was waiting when it was made."""

import json
from dataclasses import asdict, dataclass

READY, AWAY, BACK = "ready", "away", "back"
SUPERVISOR, MEMBER = "ATOLL_SUPERVISOR", "ATOLL_MEMBER"  # variables of a rank: the store's address, its own name
VOID, END = "void", "end"  # in place of a notice: it never came; there are no more
FRESH, TORN = -1, -2  # instead of a number of steps
_ROOT = "atoll/rosters/"


@dataclass(frozen=True)
class Notice:
    """READY: this member waits for a group. AWAY: it is outside of its loop, and its group does not need it. BACK: it
    is in its loop again."""

    member: str
    kind: str
    number: int = 0
    """Of the roster that it was on last; 0: none."""
    step: int = FRESH
    """How many steps its state has done. FRESH: it has none yet. TORN: it was left in the middle of one."""
    suspects: tuple[str, ...] = ()
    """The members that its group's error names."""
    reason: str = ""
    timeout_s: float = 1800.0
    """How long it would wait for others in an operation."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> "Notice":
        found = json.loads(text)
        return cls(**{**found, "suspects": tuple(found["suspects"])})


@dataclass(frozen=True)
class Seat:
    """One rank of a roster; `local_rank` stays the same for as long as the job runs."""

    member: str
    rank: int
    local_rank: int
    island: str


@dataclass(frozen=True)
class Roster:
    """Who makes up the job's group from now on, in the order of ranks. `grows`: whether more may come later."""

    number: int
    seats: tuple[Seat, ...]
    grows: bool

    def seat(self, member: str) -> Seat:
        return next(seat for seat in self.seats if seat.member == member)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> "Roster":
        found = json.loads(text)
        return cls(found["number"], tuple(Seat(**seat) for seat in found["seats"]), found["grows"])


def count_key() -> str:
    return _ROOT + "notices"


def notice_key(index: int) -> str:
    return f"{_ROOT}notice/{index}"


def answer_key(member: str, index: int) -> str:
    """Of the answer to a member's READY notices, counted from 1."""
    return f"{_ROOT}answer/{member}/{index}"


def growth_key(number: int) -> str:
    """Is there when others wait to be taken into the group of this roster."""
    return f"{_ROOT}growth/{number}"


def group_prefix(number: int) -> str:
    """In front of what the group of a roster keeps in the store."""
    return f"{_ROOT}group/{number}"
