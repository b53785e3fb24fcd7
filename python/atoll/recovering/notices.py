# SPDX-License-Identifier: Apache-2.0
"""The messages of ranks and their supervisor through the store of `atoll run --on-failure=shrink`.

A rank posts notices. A rank that is ready for a group waits for the answer: the roster of the group that it belongs to
from then on. All ranks on a roster were waiting when it was made."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

READY, AWAY, BACK = "ready", "away", "back"
SUPERVISOR, MEMBER = "ATOLL_SUPERVISOR", "ATOLL_MEMBER"  # variables of a rank: the store's address, its own name
VOID, END = "void", "end"  # instead of a notice: it never arrived; there are no more
FRESH, TORN = -1, -2  # instead of a number of steps
_ROOT = "atoll/rosters/"
_MAX_TIMEOUT_S = 1e15  # more than a timedelta holds


@dataclass(frozen=True)
class Notice:
    """A notice of a member. READY: it waits for a group. AWAY: it is outside its loop, and its group does not need it.
    BACK: it is in its loop again."""

    member: str
    kind: str
    number: int = 0
    """The number of its last roster; 0: none."""
    step: int = FRESH
    """The number of steps that its state has completed. FRESH: it has no state yet. TORN: a step was interrupted."""
    suspects: tuple[str, ...] = ()
    """The members that its group's error names."""
    reason: str = ""
    timeout_s: float = 1800.0
    """How long it waits for other ranks in an operation."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> "Notice":
        """Parses a notice. Raises ValueError if it is invalid."""
        found = _fields(_read(text), "notice", cls)
        suspects, seconds = found["suspects"], found["timeout_s"]
        if found["kind"] not in (READY, AWAY, BACK):
            raise _wrong("notice", "kind", found["kind"])
        if not all(isinstance(name, str) for name in suspects):
            raise _wrong("notice", "suspects", suspects)
        if not 0 <= seconds <= _MAX_TIMEOUT_S:
            raise _wrong("notice", "timeout_s", seconds)
        return cls(**{**found, "suspects": tuple(suspects), "timeout_s": float(seconds)})


@dataclass(frozen=True)
class Seat:
    """One rank of a roster; `local_rank` stays the same for as long as the job runs."""

    member: str
    rank: int
    local_rank: int
    island: str


@dataclass(frozen=True)
class Roster:
    """The members of the job's group from now on, in the order of ranks. `grows`: whether more may join later."""

    number: int
    seats: tuple[Seat, ...]
    grows: bool

    def seat(self, member: str) -> Seat:
        return next(seat for seat in self.seats if seat.member == member)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> "Roster":
        """Parses a roster. Raises ValueError if it is invalid."""
        found = _fields(_read(text), "roster", cls)
        seats = tuple(Seat(**_fields(seat, "seat of a roster", Seat)) for seat in found["seats"])
        return cls(found["number"], seats, found["grows"])


_JSON: dict[Any, Any] = {str: str, int: int, float: (int, float), bool: bool}  # of a field's type; tuples are lists


def _read(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None


def _fields(found: Any, what: str, record: type[Any]) -> dict[str, Any]:
    """Returns `found` after checking that it has exactly the record's fields as keys, each of its type."""
    types = {each.name: _JSON.get(each.type, list) for each in fields(record)}
    if not isinstance(found, dict) or set(found) != set(types):
        raise ValueError(f"a {what} must have the keys {', '.join(types)}, but this is {_shown(found)}")
    for name, kind in types.items():
        if not isinstance(found[name], kind) or (isinstance(found[name], bool) and kind is not bool):
            raise _wrong(what, name, found[name])
    return found


def _wrong(what: str, name: str, value: Any) -> ValueError:
    return ValueError(f"the {name} of a {what} is invalid: {_shown(value)}")


def _shown(value: Any) -> str:
    return ascii(value)[:200]


def count_key() -> str:
    return _ROOT + "notices"


def notice_key(index: int) -> str:
    return f"{_ROOT}notice/{index}"


def answer_key(member: str, index: int) -> str:
    """Returns the key of the answer to a member's READY notice `index`, counted from 1."""
    return f"{_ROOT}answer/{member}/{index}"


def growth_key(number: int) -> str:
    """Returns the key that is set when other ranks wait to join the group of this roster."""
    return f"{_ROOT}growth/{number}"


def group_prefix(number: int) -> str:
    """Returns the prefix of the keys of a roster's group in the store."""
    return f"{_ROOT}group/{number}"
