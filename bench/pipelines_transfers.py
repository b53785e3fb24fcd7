# SPDX-License-Identifier: Apache-2.0
"""The part of pipelines.py in which transfers take a large share of a step: how much of them each transport leaves
exposed."""

from typing import Any

import samples
import uneven
from compare import spread
from pipelines_cases import PLANNER, Pair
from pipelines_prediction import stages_of
from pipelines_sets import DCBS, HERE, MIXED, MPDT, TRANSPORTS, Contender, Document, Sets, interleave
from results import Settings, say, table

RATE = 20_000_000  # bits per second of each of two rails
PAIR = Pair("transfers", 8, 1536, 1.0275, (4, 4), (4, 4), 0.0, 0.0)
MICRO = 64  # samples of a micro-batch: a boundary of 256 KiB
ROUNDS, STEPS = 5, 2
WARM_UP = 10  # steps: a rail's rate is known after eight messages
LEAST = 0.3  # the smallest share of a stage's computing that its transfers must take


def measure(settings: Settings, speeds: dict[str, float]) -> Document:
    """Measures all transports with one plan, and the same plan over shared memory, where transfers take almost no
    time."""
    names = (HERE, DCBS, MPDT) if settings.quick else (HERE, *TRANSPORTS)
    blocks, micro = (4, 8) if settings.quick else (PAIR.blocks, MICRO)
    with Sets(RATE, speeds, [(name, "fast slow", name) for name in names]) as sets:
        case = PAIR.case([blocks - blocks // 2, blocks // 2], micro=micro, blocks=blocks)
        asking = _contender(sets, DCBS, PAIR.case(micro=micro, blocks=blocks))
        request = asking.request
        assert request is not None
        asking.ranks.ask("pipeline_drop", names=[asking.name])
        contenders = [_contender(sets, name, case) for name in sets.ranks]
        for each in contenders:
            each.block(1 if settings.quick else WARM_UP)
        interleave(contenders, settings.rounds(ROUNDS), STEPS)
        rows = [each.row(case.samples * samples.LENGTH) for each in contenders]
        for row in rows:
            row["links"] = sets.ranks[row["transport"]].ask("pipeline_links")[0]["links"]
        found = {"rows": rows, "missing": sets.missing, "weight": weight(request, contenders[0].plan)}
    for row in rows:
        say(f"transfers, {row['transport']}: {row['passes_s']['median'] * 1e3:.0f} ms, {exposed_text(row, rows)}")
    boundary = case.micro * samples.LENGTH * case.width * 4
    return {**found, "rate": RATE, "boundary": boundary, "blocks": blocks, "micro_batches": case.micro_batches}


def _contender(sets: Sets, transport: str, case: Any) -> Contender:
    return Contender(MIXED, transport, PLANNER, sets.ranks[transport], case).make(f"transfers, {transport}")


def weight(request: Document, plan: Document) -> float:
    """Returns the transfer time of a stage as a share of its computing, by the measured link; the smallest of all
    stages."""
    stages = stages_of(request, plan)
    return float(min(stage["send"] / (stage["forward"] + stage["backward"]) for stage in stages if stage["send"]))


def exposed(row: Document, rows: list[Document]) -> dict[str, float] | None:
    """Returns the seconds by which the passes exceed those without transfers, round by round. None where devices were
    late."""
    (alone,) = [each for each in rows if each["transport"] == HERE]
    if row["late"] or alone["late"]:
        return None
    pairs = zip(row["passes_s"]["rounds"], alone["passes_s"]["rounds"], strict=True)
    return spread([with_them - without for with_them, without in pairs])


def exposed_text(row: Document, rows: list[Document]) -> str:
    if row["transport"] == HERE:
        return ""
    found = exposed(row, rows)
    return uneven.figure(row, uneven.milliseconds(found)) if found else "no figure: devices were late"


def report(document: Document) -> str:
    rows = document["rows"]
    enough = "" if document["weight"] >= LEAST else f" That is less than the {LEAST:.0%} that this part is meant for."
    text = (
        f"\n## Where transfers weigh\n\nThe same devices with {document['blocks']} blocks in two equal stages, over "
        f"links of {document['rate'] / 1e6:g} Mbit/s, {document['micro_batches']} micro-batches with boundaries of "
        f"{document['boundary'] >> 10} KiB: by the measured link, a stage's transfers over *dcbs* take at least "
        f"{document['weight']:.0%} of its computing.{enough} *Exposed* is what the passes of a step take longer than "
        f"over {HERE}, round by round.\n\n"
    )
    cells = []
    for row in rows:
        passes = uneven.figure(row, uneven.milliseconds(row["passes_s"]))
        link = next(iter(row["links"].values()), "Gloo")
        cells.append([row["transport"], passes, exposed_text(row, rows), link])
    text += table(["transport", "passes, ms", "exposed, ms", "link"], cells)
    for name, why in document["missing"].items():
        text += f"\n{name} did not start here: {why}.\n"
    return text
