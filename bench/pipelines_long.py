# SPDX-License-Identifier: Apache-2.0
"""500 iterations of the pipelines of pipelines.py, as the planner divides them: does throughput stay steady, and are
losses those of one process? Needs root."""

from dataclasses import asdict
from typing import Any

import pipelines_long_tables
import samples
from pipelines import LAYOUTS, alone, made, speeds_of
from pipelines_cases import PAIRS, PLANNER, QUICK, RATE, SPEED, Pair
from pipelines_sets import DCBS, MIXED, Document, Sets
from results import Settings, say

TITLE = "pipelines over unlike devices: 500 iterations"
STEPS, CHUNK = 500, 10  # iterations, and how many of them form one turn

report = pipelines_long_tables.report


def measure(settings: Settings) -> dict[str, Any]:
    faster = 20.0 if settings.quick else 1.0
    parts = []
    for pair in (QUICK,) if settings.quick else PAIRS:
        with Sets(RATE, speeds_of(pair, faster), [*LAYOUTS, (DCBS, "fast slow", DCBS)]) as sets:
            parts.append({"pair": asdict(pair), "long": _measure_pair(settings, pair, sets)})
    settings.output.mkdir(parents=True, exist_ok=True)
    for name, drawing in pipelines_long_tables.plots_of(parts).items():
        (settings.output / f"{name}.svg").write_text(drawing)
    return {"parts": parts, "rate": RATE, "speed": SPEED * faster, "tokens": samples.LENGTH}


def _measure_pair(settings: Settings, pair: Pair, sets: Sets) -> Document:
    """Trains the pipelines in turns, and one process for comparison."""
    steps, chunk = (4, 2) if settings.quick else (STEPS, CHUNK)
    names = {layout: layout for layout, _, _ in LAYOUTS} | {MIXED: DCBS}
    contenders = [made(sets, layout, DCBS, ranks, PLANNER, pair.case()) for layout, ranks in names.items()]
    for turn in range(steps // chunk):
        for each in contenders[::-1] if turn % 2 else contenders:
            each.measure(chunk)
    tokens = pair.case().samples * samples.LENGTH
    rows = [
        {
            "layout": each.layout, "losses": each.losses(), "late": each.late(),
            "tokens_s": [tokens / seconds for block in each.blocks for seconds in block["seconds"]],
        }
        for each in contenders
    ]  # fmt: skip
    losses = alone(sets, DCBS, pair.case(), steps)
    say(f"{pair.name}, {steps} iterations: loss {rows[-1]['losses'][-1]:.4f}, of one process {losses[-1]:.4f}")
    return {"rows": rows, "alone": losses, "chunk": chunk}
