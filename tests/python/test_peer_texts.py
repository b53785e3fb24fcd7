# SPDX-License-Identifier: Apache-2.0
"""Texts of other processes, in the store and in a Redis server, whatever they contain."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from atoll.launch.members import Members, Publish
from atoll.launch.supervisor import NoNotice, _heard
from atoll.recovering.notices import AWAY, BACK, READY, TORN, Notice, Roster, Seat
from atoll.redis import members

Parsed = TypeVar("Parsed")
NOTICE = Notice("0.0", READY, 2, 40, ("1.0", "2.0"), "rank 1 died", 60.0)
ROSTER = Roster(3, (Seat("0.0", 0, 0, "A"), Seat("2.1", 1, 2, "")), True)
MEMBER = {"rank": 1, "island": "A", "device": "cuda:0", "score": 12.5, "host": "h", "pid": 4711}

SCALARS = some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8)
VALUES = some.recursive(SCALARS, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner))
HUGE, DEEP = "9" * 4000, "[" * 100_000


def changed(text: str) -> some.SearchStrategy[str]:
    """Returns the object in `text` with one of its values or keys changed, or any other text."""
    found: dict[str, Any] = json.loads(text)
    values = some.tuples(some.sampled_from(sorted(found)), VALUES).map(
        lambda new: json.dumps({**found, new[0]: new[1]})
    )
    keys = some.sampled_from(sorted(found)).map(lambda gone: json.dumps({k: v for k, v in found.items() if k != gone}))
    cut = some.integers(0, len(text)).map(lambda end: text[:end])
    return values | keys | cut | VALUES.map(json.dumps) | some.text()


def as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def parsed(parse: Callable[[str | bytes], Parsed], text: str | bytes) -> Parsed | None:
    try:
        return parse(text)
    except ValueError as error:
        assert str(error)
        return None


@given(changed(NOTICE.text()))
@example(NOTICE.text().replace("40", HUGE))
@example(NOTICE.text().replace("60.0", HUGE))
@example(NOTICE.text().replace("60.0", "NaN"))
@example(DEEP)
def test_a_notice_is_read_or_refused(text: str) -> None:
    notice = parsed(Notice.parse, text)
    if notice is None:
        return
    assert Notice.parse(notice.text()) == notice
    # A readable notice may be wrong, but does not end supervision.
    members = Members(["A", "B", "C"], 1, 1)
    for moment in (0.0, 1.0, 1e9):
        for decision in members.decide(moment):
            str(decision)
        members.notice(notice, moment)
    for _ in range(3):
        for decision in members.decide(2e9):
            if isinstance(decision, Publish):
                assert Roster.parse(decision.roster.text()) == decision.roster


@given(some.binary(max_size=200))
@example(b'{"member": "\xff"}')
def test_bytes_that_are_not_a_notice_are_ignored(content: bytes) -> None:
    heard = _heard(content)
    assert isinstance(heard, NoNotice)
    assert heard.problem


@pytest.mark.parametrize("kind", [READY, AWAY, BACK])
def test_a_valid_notice_is_delivered(kind: str) -> None:
    notice = Notice("0.0", kind, 1, TORN, ("1.0",))
    assert _heard(notice.text().encode()) == notice


@given(changed(ROSTER.text()) | changed(json.dumps(MEMBER)).map(lambda seat: f'{{"number": 1, "seats": [{seat}]}}'))
@example(DEEP)
@example(ROSTER.text().replace('"rank": 0', '"rank": true'))
def test_a_roster_is_read_or_refused(text: str) -> None:
    roster = parsed(Roster.parse, text)
    assert roster is None or Roster.parse(roster.text()) == roster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a notice must have the keys member, kind, number"),
        (NOTICE.text().replace("40", '"many"'), "the step of a notice is invalid: 'many'"),
        (NOTICE.text().replace('["1.0", "2.0"]', "[[]]"), r"the suspects of a notice is invalid: \[\[\]\]"),
        (NOTICE.text().replace('"ready"', '"gone"'), "the kind of a notice is invalid: 'gone'"),
        (NOTICE.text().replace("60.0", "-1"), "the timeout_s of a notice is invalid: -1"),
        (DEEP, "too deeply"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Notice.parse(text)


def member(**changes: Any) -> bytes:
    return json.dumps({**MEMBER, **changes}).encode()


MEMBERS = some.lists(changed(json.dumps(MEMBER)).map(as_bytes) | some.binary(), max_size=4)


@given(MEMBERS)
@example([member(score=0)])
@example([member(score=True), member(score=-1)])
@example([member(), member(score=int(HUGE))])
@example([DEEP.encode(), member(host="\x1b[2J\ud800")])
def test_members_of_a_redis_job_are_shown(texts: list[bytes]) -> None:
    job = SimpleNamespace(name="j", created=1, alive=1, world_size=2, members=dict(enumerate(texts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "_C", SimpleNamespace(redis_jobs=lambda url, timeout: [job]))
        rows = list(members.rows("redis://host"))
    assert len(rows) == max(1, len(texts))
    for _, _, row in rows:
        assert len(row) == 7
        assert all(cell.isprintable() and len(cell) <= 60 for cell in row)


def test_scores_are_relative_to_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [10, 40, None, 0, float("nan")]
    texts = {rank: member(rank=rank, score=score) for rank, score in enumerate(scores)}
    job = SimpleNamespace(name="j", created=1, alive=5, world_size=0, members=texts)
    monkeypatch.setattr(members, "_C", SimpleNamespace(redis_jobs=lambda url, timeout: [job]))
    assert [row[3] for _, _, row in members.rows("redis://host")] == ["0.25", "1.00", "-", "0", "nan"]
