# SPDX-License-Identifier: Apache-2.0
"""The analysis of a job's records as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll._tables import new_table, wide
from atoll.diagnosis.clocks import Clocks
from atoll.diagnosis.records import Folder, ranks_text
from atoll.diagnosis.waiting import Absence, Collective, Late, blames, late, never_entered
from atoll.planning.table import seconds_text

_MAX_ERRORS = 8


def show(
    folder: Folder, found: Sequence[Collective], clocks: Clocks, most: int, console: Console | None = None
) -> None:
    """Prints what is missing, the ranks that never came, the latest arrivals, and the ranks that others waited for."""
    console = wide(console)
    for problem in folder.problems:
        console.print(Text(problem, "yellow"), soft_wrap=True)
    console.print(Text(_summary(folder, found, clocks), "bold"), soft_wrap=True)
    for error in _errors(folder):
        console.print(Text(error, "red"), soft_wrap=True)
    absences = never_entered(folder, found, clocks)
    rows = late(found)
    for title, table in (
        ("Never entered", _absences(absences)),
        ("Latest arrivals", _late(rows[:most], clocks)),
        ("Ranks that others waited for", _blames(found, most)),
    ):
        if table.row_count:
            console.print()
            console.print(Text(title, "bold"))
            console.print(table)
    console.print()
    console.print(Text(verdict(absences, rows, found, clocks), "bold"), soft_wrap=True)


def verdict(absences: Sequence[Absence], rows: Sequence[Late], found: Sequence[Collective], clocks: Clocks) -> str:
    """Names the culprit in one sentence."""
    if absences:
        row = absences[0]
        more = f" ({len(absences) - 1} more above)" if len(absences) > 1 else ""
        return (
            f"Culprit: rank {row.rank} never entered {row.collective.name} of group {row.collective.group}, "
            f"in which {ranks_text(row.others)} {'waits' if len(row.others) == 1 else 'wait'}{more}"
        )
    total = blames(found)
    if not rows or not total:
        return "No rank waited for another"
    rank, blame = next(iter(total.items()))
    share = blame.waited / max(1.0, sum(other.waited for other in total.values()))
    return (
        f"Others waited most for rank {rank}: {_micro(blame.waited)} in total, {100 * share:.0f} % of all waiting; "
        f"it came last to {blame.last} of {len(found)} collectives"
    )


def _summary(folder: Folder, found: Sequence[Collective], clocks: Clocks) -> str:
    ranks = {record.rank for record in folder.records}
    members = {rank for record in folder.records for rank in record.members}
    errors = [clocks.error(rank) for rank in ranks]
    known = max((error for error in errors if error is not None), default=0)
    unknown = {rank for rank in ranks if clocks.error(rank) is None}
    begin = min((min(one.called.values()) for one in found), default=0)
    end = max((max(one.finished.values(), default=begin) for one in found), default=begin)
    text = (
        f"{len(ranks)} of {len(members)} ranks, {_counted(len(folder.groups()), 'group')}, "
        f"{_counted(len(found), 'collective')} in {_micro(end - begin)}; clocks agree within {_micro(known)}"
    )
    return text + (f", but those of {ranks_text(unknown)} are unknown" if unknown else "")


def _errors(folder: Folder) -> list[str]:
    """Returns each error once, because ranks repeat what another rank reported."""
    texts: dict[str, list[int]] = {}
    for record in sorted(folder.records, key=lambda record: record.rank):
        if record.error:
            texts.setdefault(record.error, []).append(record.rank)
    lines = [f"{ranks_text(ranks)}: {text}" for text, ranks in texts.items()]
    return lines[:_MAX_ERRORS] + ([f"and {len(lines) - _MAX_ERRORS} more"] if len(lines) > _MAX_ERRORS else [])


def _absences(rows: Sequence[Absence]) -> Table:
    left = ("group", "collective", "its last")
    table = new_table("rank", "group", "collective", "its last", "waiting ranks", left=left)
    for row in rows:
        last = f"{row.last.label} ({row.last.state})" if row.last else "none"
        table.add_row(str(row.rank), row.collective.group, row.collective.name, last, ranks_text(row.others))
    return table


def _late(rows: Sequence[Late], clocks: Clocks) -> Table:
    table = new_table(
        "collective", "group", "bytes", "last", "after the others", "they waited", left=("collective", "group")
    )
    for row in rows:
        errors = [clocks.error(rank) for rank in row.collective.called]
        doubt = None if None in errors else sum(sorted(error or 0 for error in errors)[-2:])
        sure = doubt is not None and row.by > doubt
        by = _micro(row.by) + ("" if sure else " (within the clocks' error)")
        table.add_row(row.collective.name, row.collective.group, str(row.collective.bytes), f"rank {row.rank}", by,
                      _micro(row.waited))  # fmt: skip
    return table


def _blames(found: Sequence[Collective], most: int) -> Table:
    table = new_table("rank", "others waited", "came last", "at worst")
    for rank, blame in list(blames(found).items())[:most]:
        if blame.waited > 0:
            table.add_row(str(rank), _micro(blame.waited), f"{blame.last} times", _micro(blame.worst))
    return table


def _micro(microseconds: float) -> str:
    return seconds_text(microseconds / 1e6) if microseconds else "0 s"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
