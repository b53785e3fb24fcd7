# SPDX-License-Identifier: Apache-2.0
"""The links that a training uses, and the used share of their capacity."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.report.parts import heat, scaled
from atoll.report.records import RecordError
from atoll.report.steps import Summary, link_bytes

MAX_RANKS = 64  # in a picture


@dataclass(frozen=True)
class Measured:
    """The measurements of `atoll doctor --json`: GB/s from rank to rank."""

    rates: dict[tuple[int, int], float]
    ranks: int


def read_doctor(path: Path) -> Measured:
    """Reads such a file. Raises RecordError for other files."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Measured(rates(document), len(document["ranks"]))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{path} was not written by atoll doctor --json FILE") from None


def rates(document: dict[str, Any]) -> dict[tuple[int, int], float]:
    """Returns the rates in GB/s, from one rank to another, of the doctor's document."""
    found = {(pair["a"], pair["b"]): float(pair["a_to_b"]) for pair in document["links"]}
    return found | {(pair["b"], pair["a"]): float(pair["b_to_a"]) for pair in document["links"]}


def link_use(of: Summary, measured: Measured | None) -> Iterator[str]:
    """Yields the figures of links; nothing if no bytes were counted, as in a group of one rank or another backend."""
    sent = link_bytes(of.windows)
    if not sent or len(of.devices) > MAX_RANKS:
        return
    names = [str(rank) for rank in of.ranks]
    factor, unit = scaled(max(sent.values()), "B")
    matrix = [[sent[a, b] * factor if (a, b) in sent else None for b in of.ranks] for a in of.ranks]
    about = "Payload of collectives in a step. Traffic of a vendor's library inside an island is not counted."
    yield heat("Bytes by link", about, names, matrix, f"{unit} per step")
    if measured is None:
        return
    if measured.ranks != len(of.devices):
        yield (
            f"<p>The doctor measured {measured.ranks} ranks, but the training has {len(of.devices)}: the capacity "
            f"of links is not compared.</p>"
        )
        return
    shares = [
        [
            100 * count / of.wall / (1e9 * rate)
            if (count := sent.get((a, b))) and (rate := measured.rates.get((a, b)))
            else None
            for b in of.ranks
        ]
        for a in of.ranks
    ]
    about = "Bytes per second over the whole step, relative to the rate that atoll doctor measured for the link."
    yield heat("Link use", about, names, shares, "% of the measured rate")
