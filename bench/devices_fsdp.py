# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on simulated devices: how much communication a step exposes."""

from typing import Any

from contenders import TorchRanks
from devices_overhead import places
from intervals import median_interval
from library import STEPS, late_text, model_of, oversubscribed, paired_blocks
from results import Settings, say, table

# A tenth of the speed and rates that this machine could just simulate, because a step has many small operators.
MODELLED = {
    "ATOLL_SIM_SPEED": "0.1",
    "ATOLL_SIM_MODEL": "even",
    "ATOLL_SIM_BANDWIDTH": "100M",
    "ATOLL_SIM_LINK": "100M",
}
LAYERS, WIDTH, BATCH = 8, 512, 32
LAYOUTS = {"AA": ("atoll", "inner", "nothing"), "AB": ("atoll", "nothing")}


def measure(settings: Settings) -> list[dict[str, Any]]:
    layouts = ["AB"] if settings.quick else [*LAYOUTS]
    return [_measure(settings, layout, LAYOUTS[layout]) for layout in layouts]


def _measure(settings: Settings, layout: str, names: tuple[str, ...]) -> dict[str, Any]:
    model = {"layers": 2, "width": 64, "batch": 8} if settings.quick else model_of(LAYERS, WIDTH, BATCH)
    with TorchRanks(places("sim", MODELLED, layout), list(names)) as ranks:
        ranks.ask("training", kind="fsdp", names=list(names), **model)
        samples = paired_blocks(ranks, names, settings.rounds(15))
        late = oversubscribed(ranks)
    row: dict[str, Any] = {"layout": layout, **model, "blocks_s": samples, "oversubscribed": late}
    row["step_s"] = {name: median_interval([seconds / STEPS for seconds in of]) for name, of in samples.items()}
    row["exposed_s"] = {
        name: median_interval([(a - b) / STEPS for a, b in zip(samples[name], samples["nothing"], strict=True)])
        for name in names
        if name != "nothing"
    }
    shown = ", ".join(f"{name} {exposed['median'] * 1e3:.1f} ms" for name, exposed in row["exposed_s"].items())
    say(f"FSDP2, {layout}: exposed {shown} of {row['step_s']['atoll']['median'] * 1e3:.1f} ms")
    return row


def report(rows: list[dict[str, Any]]) -> str:
    settings = ", ".join(f"`{name}={value}`" for name, value in MODELLED.items())
    first = rows[0]
    text = (
        f"\n## FSDP2's exposed communication\n\nStock `fully_shard` of each of {first['layers']} layers of "
        f"{first['width']} x {first['width']}, batch {first['batch']}, two ranks on `sim` with {settings}. Exposed is "
        "the time of a step less that of the same step over a group whose collectives only fill the result from the "
        "rank's own memory, so that shards have the same sizes and every other operator is the same; medians over "
        "rounds of paired blocks, with their 95 % intervals. Modelled device time, real bytes.\n\n"
    )
    cells = []
    for row in rows:
        for name, exposed in row["exposed_s"].items():
            exposed_ms = {key: value * 1e3 for key, value in exposed.items()}
            shown = f"{exposed_ms['median']:.2f} ms ({exposed_ms['low']:.2f} to {exposed_ms['high']:.2f})"
            backend = "simccl alone" if name == "inner" else name
            steps = [f"{row['step_s'][which]['median'] * 1e3:.1f} ms" for which in (name, "nothing")]
            cells.append([row["layout"], backend, *steps, late_text(row["oversubscribed"]) or shown])
    return text + table(["islands", "backend", "step", "without communication", "exposed"], cells)
