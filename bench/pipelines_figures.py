# SPDX-License-Identifier: Apache-2.0
"""Figures computed from the rows of pipelines.json. They are None where this machine could not keep the modelled
times."""

from collections.abc import Callable, Sequence
from typing import Any

from compare import spread
from found import Document, Found
from pipelines_cases import PAPER, PLANNER, TURNED
from pipelines_sets import DCBS, FAST, MIXED, SLOW

WINDOW = 20  # steps over which losses are averaged before they are compared
Row = dict[str, Any]


def row_of(rows: Sequence[Row], layout: str, split: str, transport: str = DCBS) -> Row | None:
    wanted = (layout, split, transport)
    found = [row for row in rows if (row["layout"], row["split"], row["transport"]) == wanted]
    return found[0] if found and not found[0]["late"] else None


def by(one: Row | None, other: Row | None) -> dict[str, float] | None:
    """Returns the tokens per second of one row divided by those of the other, round by round."""
    if one is None or other is None:
        return None
    return spread([a / b for a, b in zip(one["tokens_s"]["rounds"], other["tokens_s"]["rounds"], strict=True)])


def of_seconds(row: Row, key: str) -> dict[str, float]:
    """Returns a predicted time divided by that of the measured passes, round by round."""
    return spread([row[key] / seconds for seconds in row["passes_s"]["rounds"]])


def apart(row: Row) -> float:
    """Returns the difference of the simulated step from the measured one, as a share of the measured one."""
    return float(abs(row["simulated_s"] / row["passes_s"]["median"] - 1))


def windows(losses: Sequence[float]) -> list[float]:
    """Returns the means of whole windows, or the mean of everything if there is no whole window."""
    size = min(WINDOW, len(losses))
    return [sum(losses[first : first + size]) / size for first in range(0, len(losses) - size + 1, size)]


def loss_apart(losses: Sequence[float], alone: Sequence[float]) -> float:
    """Returns the largest relative difference between windows."""
    pairs = zip(windows(losses), windows(alone), strict=True)
    return max(abs(own - other) / other for own, other in pairs)


def settled(row: Row, chunk: int) -> dict[str, float]:
    """Returns the spread of the rates of a long run, without its first chunk and without the first step of each chunk,
    which follows the blocks of others."""
    rates = [rate for step, rate in enumerate(row["tokens_s"]) if step >= chunk and step % chunk]
    return spread(rates or row["tokens_s"])


def width(of: dict[str, float]) -> float:
    """Returns the spread of 80 % of the steps divided by the median."""
    return (of["p90"] - of["p10"]) / of["median"]


# For the aims.


def _found(of: dict[str, float], case: str) -> Found:
    return Found(of["median"], of["p10"], of["p90"], case)


def mixed_of(key: str) -> Callable[[Document], list[Found]]:
    """Measures the planner's mixed pipeline: a predicted time in percent of the measured one."""

    def measure(document: Document) -> list[Found]:
        found = []
        for part in document["parts"]:
            row = row_of(part["rows"], MIXED, PLANNER)
            if row is not None:
                percent = {name: 100 * value for name, value in of_seconds(row, key).items()}
                found.append(_found(percent, part["pair"]["name"]))
        return found

    return measure


def beyond_paper(against: str) -> Callable[[Document], list[Found]]:
    """Measures how many points the planner's mixed pipeline by the planner's homogeneous one exceeds what the paper
    reached."""

    def measure(document: Document) -> list[Found]:
        found = []
        for part in document["parts"]:
            pair = part["pair"]
            theirs = pair["of_fast"] if against == FAST else 1 + pair["over_slow"]
            ratio = by(row_of(part["rows"], MIXED, PLANNER), row_of(part["rows"], against, PLANNER))
            if ratio is not None:
                points = {name: 100 * (value - theirs) for name, value in ratio.items()}
                found.append(_found(points, pair["name"]))
        return found

    return measure


def bad_split(document: Document) -> list[Found]:
    """Returns the rate of the paper's split the wrong way round, divided by that of two slow devices as the paper
    divides them."""
    found = []
    for part in document["parts"]:
        ratio = by(row_of(part["rows"], MIXED, TURNED), row_of(part["rows"], SLOW, PAPER))
        if ratio is not None:
            found.append(_found(ratio, part["pair"]["name"]))
    return found


def simulated(document: Document) -> list[Found]:
    """Returns the deviation of the simulated step in percent, over all rows with a prediction."""
    named = [(part["pair"]["name"], part["rows"]) for part in document["parts"]]
    named.append((document["square"]["pair"]["name"], document["square"]["rows"]))
    found = []
    for name, rows in named:
        for row in rows:
            if "simulated_s" in row and not row["late"]:
                value = 100 * apart(row)
                found.append(Found(value, value, value, f"{name}, {row['layout']}, {row['split']}"))
    return found


def steadiness(document: Document) -> list[Found]:
    """Returns by how many points the spread of 500 iterations over unlike devices exceeds the wider one over equal
    devices."""
    found = []
    for part in document["parts"]:
        rows = {row["layout"]: row for row in part["long"]["rows"]}
        if any(row["late"] for row in rows.values()):
            continue
        wide = {layout: 100 * width(settled(row, part["long"]["chunk"])) for layout, row in rows.items()}
        value = wide[MIXED] - max(wide[FAST], wide[SLOW])
        found.append(Found(value, value, value, part["pair"]["name"]))
    return found


def losses(document: Document) -> list[Found]:
    """Returns how far losses of 500 iterations are from those of one process, in percent."""
    found = []
    for part in document["parts"]:
        for row in part["long"]["rows"]:
            value = 100 * loss_apart(row["losses"], part["long"]["alone"])
            found.append(Found(value, value, value, f"{part['pair']['name']}, {row['layout']}"))
    return found


def exactness(document: Document) -> list[Found]:
    """Returns the relative difference of losses in float64 to those of one process, in units of 1e-10."""
    rows = {
        f"{part['pair']['name']}, {row['transport']}, {row['split']}": row["relative"]
        for part in document["parts"]
        for row in part["float64"]
    }
    rows["2 x 2"] = document["square"]["float64"]["relative"]
    return [Found(value * 1e10, value * 1e10, value * 1e10, case) for case, value in rows.items()]
