# SPDX-License-Identifier: Apache-2.0
"""The AMD and NVIDIA paper's experiment: a pipeline of two stages over two fast devices, two slow devices, and one of
each, by transport and by split. Needs root."""

from dataclasses import asdict, replace
from typing import Any

import pipelines_tables
import pipelines_transfers
import samples
from pipelines_cases import (
    PAIRS,
    PAPER,
    PLANNER,
    QUICK,
    QUICK_SQUARE,
    RATE,
    REPLICAS,
    SLOW_RATE,
    SPEED,
    SQUARE,
    TURNED,
    Case,
    Pair,
)
from pipelines_prediction import best_cut, head_blocks, predict
from pipelines_sets import DCBS, FAST, MIXED, SLOW, TRANSPORTS, Contender, Document, Sets, interleave
from results import Settings, say

TITLE = "pipelines over unlike devices: the AMD and NVIDIA paper's experiment"
LAYOUTS = ((FAST, "fast fast", DCBS), (SLOW, "slow slow", DCBS))
ROUNDS, STEPS = 7, 3  # steps of a block
SHORT = 20  # steps in float64
ACROSS, INSIDE = "pipelines across kinds, replicas inside", "pipelines inside kinds, replicas across"

report = pipelines_tables.report


def measure(settings: Settings) -> dict[str, Any]:
    pairs = (QUICK,) if settings.quick else PAIRS
    faster = 20.0 if settings.quick else 1.0
    wanted = [*LAYOUTS, *((name, "fast slow", name) for name in TRANSPORTS)]
    parts = []
    for pair in pairs:
        with Sets(RATE, speeds_of(pair, faster), wanted) as sets:
            parts.append(_measure_pair(settings, pair, sets))
    document = {
        "parts": parts, "transfers": pipelines_transfers.measure(settings, speeds_of(pairs[0], faster)),
        "slow_link": _measure_slow_link(settings, pairs[0], faster, parts[0]),
        "square": _measure_square(settings, faster), "rate": RATE, "slow_rate": SLOW_RATE, "speed": SPEED * faster,
        "steps": STEPS, "tokens": samples.LENGTH, "case": asdict(pairs[0].case()),
    }  # fmt: skip
    settings.output.mkdir(parents=True, exist_ok=True)
    for name, drawing in pipelines_tables.plots_of(document).items():
        (settings.output / f"{name}.svg").write_text(drawing)
    return document


def speeds_of(pair: Pair, faster: float) -> dict[str, float]:
    return {"fast": SPEED * faster, "slow": SPEED * faster / pair.slower}


def _measure_pair(settings: Settings, pair: Pair, sets: Sets) -> Document:
    alike = [made(sets, name, DCBS, name, PLANNER, pair.case()) for name in (FAST, SLOW)]
    alike += [made(sets, name, DCBS, name, PAPER, pair.case(list(pair.alike))) for name in (FAST, SLOW)]
    first = made(sets, MIXED, DCBS, DCBS, PLANNER, pair.case())
    mixed = [first, *_mixed(pair, sets, first.plan)]
    planned = {each.layout: each for each in (*alike[:2], first)}
    contenders = [*alike, *mixed]
    interleave(contenders, settings.rounds(ROUNDS), _few(settings, STEPS))
    rows = [_row(each, planned, pair) for each in contenders]
    for row in rows:
        rate = row["tokens_s"]["median"]
        say(f"{pair.name}, {row['layout']}, {row['transport']}, {row['split']}: {rate:.0f} tokens/s")
    links = {name: ranks.ask("pipeline_links")[0]["links"] for name, ranks in sets.ranks.items()}
    for ranks in sets.ranks.values():
        ranks.ask("pipeline_drop", names=[each.name for each in contenders if each.ranks is ranks])
    request = first.request
    assert request is not None
    return {
        "pair": asdict(pair), "rows": rows, "missing": sets.missing, "links": links, "head": head_blocks(request),
        "float64": _measure_float64(settings, pair, sets, first.plan),
    }  # fmt: skip


def _few(settings: Settings, steps: int) -> int:
    return 2 if settings.quick else steps


def made(sets: Sets, layout: str, transport: str, of: str, split: str, case: Case) -> Contender:
    """`of`: the name of the set of ranks."""
    return Contender(layout, transport, split, sets.ranks[of], case).make(f"{layout}, {transport}, {split}")


def _mixed(pair: Pair, sets: Sets, plan: Document) -> list[Contender]:
    """All mixed contenders except the planner's own split over DCBS."""
    found = []
    for transport in TRANSPORTS:
        if transport not in sets.ranks:
            continue
        splits: dict[str, Any] = {name: list(counts) for name, counts in pair.splits().items()}
        if transport != DCBS:
            splits = {PLANNER: plan, **splits}
        else:
            splits[TURNED] = list(reversed(pair.split))
        found += [made(sets, MIXED, transport, transport, name, pair.case(of)) for name, of in splits.items()]
    half = pair.case().micro_batches // 2
    case = pair.case(replicas=2, micro_batches=half)
    return [*found, made(sets, MIXED, DCBS, DCBS, REPLICAS, case)]


def _row(contender: Contender, planned: dict[str, Contender], pair: Pair) -> Document:
    """Adds the bound of its layout, and the prediction where its links were measured."""
    row = contender.row(pair.case().samples * samples.LENGTH)
    first = planned[contender.layout]
    row["bound_s"] = first.plan["answer"]["bound"]
    if contender.transport == DCBS:
        request = contender.request or first.request
        assert request is not None
        row |= predict(request, contender.plan)
    return row


def _measure_float64(settings: Settings, pair: Pair, sets: Sets, plan: Document) -> list[Document]:
    plans = {PLANNER: plan, PAPER: list(pair.split)}
    transports = [name for name in TRANSPORTS if name in sets.ranks]
    cases = {split: pair.case(of, dtype="float64") for split, of in plans.items()}
    steps = _few(settings, SHORT)
    expected = alone(sets, DCBS, cases[PLANNER], steps)
    return [
        {"split": split, "transport": name, "steps": steps, "relative": _apart(sets, name, case, expected)}
        for name in transports
        for split, case in cases.items()
    ]


def alone(sets: Sets, of: str, case: Case, steps: int) -> list[float]:
    """Returns the losses of one process."""
    answer = sets.ranks[of].ask("pipeline_alone", case=asdict(replace(case, plan="auto")), steps=steps)[0]
    losses: list[float] = answer["losses"]
    return losses


def _apart(sets: Sets, of: str, case: Case, expected: list[float]) -> float:
    """Returns the largest relative difference of losses to those of one process."""
    contender = Contender(MIXED, of, "", sets.ranks[of], case).make("float64")
    own = contender.block(len(expected))["losses"]
    contender.ranks.ask("pipeline_drop", names=["float64"])
    apart = max(abs(mine - other) / abs(other) for mine, other in zip(own, expected, strict=True))
    say(f"float64, {of}: {apart:.1e} off one process in {len(expected)} steps")
    return float(apart)


def _measure_slow_link(settings: Settings, pair: Pair, faster: float, part: Document) -> list[Document]:
    """Measures the transports alone, with the plan that was found over the fast link."""
    row = next(row for row in part["rows"] if (row["layout"], row["split"]) == (MIXED, PLANNER))
    wanted = [(name, "fast slow", name) for name in (TRANSPORTS[:2] if settings.quick else TRANSPORTS)]
    with Sets(SLOW_RATE, speeds_of(pair, faster), wanted) as sets:
        case = pair.case(row["plan"])
        contenders = [made(sets, MIXED, name, name, PLANNER, case) for name in sets.ranks]
        interleave(contenders, settings.rounds(ROUNDS), _few(settings, STEPS))
        tokens = pair.case().samples * samples.LENGTH
        return [{**each.row(tokens), "bound_s": row["bound_s"]} for each in contenders]


def _measure_square(settings: Settings, faster: float) -> Document:
    """Measures two pipelines on four ranks, two of each kind: placed by the planner, and in both ways by hand."""
    pair = QUICK_SQUARE if settings.quick else SQUARE
    speeds = {
        kind: speed / 2 for kind, speed in speeds_of(pair, faster).items()
    }  # twice as many ranks on the same cores
    with Sets(RATE, speeds, [("square", "fast fast slow slow", DCBS)]) as sets:
        case = pair.case(replicas=2)
        first = made(sets, MIXED, DCBS, "square", PLANNER, case)
        request = first.request
        assert request is not None
        found = {ACROSS: [[0, 2], [1, 3]], INSIDE: [[0, 1], [2, 3]]}
        cuts = {name: best_cut(request, lines, pair.blocks, case.micro_batches) for name, lines in found.items()}
        others = [made(sets, MIXED, DCBS, "square", name, replace(case, plan=plan)) for name, plan in cuts.items()]
        contenders = [first, *others]
        interleave(contenders, settings.rounds(ROUNDS), _few(settings, STEPS))
        rows = [_row(each, {MIXED: first}, pair) | _whole(each, case) for each in contenders]
        exact = replace(case, plan=first.plan, dtype="float64")
        steps = _few(settings, SHORT)
        apart = _apart(sets, "square", exact, alone(sets, "square", exact, steps))
    return {"pair": asdict(pair), "rows": rows, "float64": {"steps": steps, "relative": apart}}


def _whole(contender: Contender, case: Case) -> Document:
    """Returns the rates of all pipelines together."""
    return {"tokens_s": contender.row(case.samples * samples.LENGTH)["tokens_s"]}
