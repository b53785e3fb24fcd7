# SPDX-License-Identifier: Apache-2.0
"""The time it takes to find and to simulate plans, from JSON to JSON as in `atoll plan layers` and `atoll simulate`."""

import json
import time
from typing import Any

from atoll import _C
from compare import spread
from found import Found
from results import Settings, say, table

TITLE = "how long plans take"
Document = dict[str, Any]
ROUNDS = 9
GIB = 1 << 30
BLOCKS, PER_CLASS = 128, 4
SPEEDS = {"a": 1.0, "b": 0.93, "c": 0.61, "d": 0.38}
ISLANDS, PER_ISLAND = 16, 256
MICRO_BATCHES = (4, 16, 64, 1024)
STEP_BATCHES = 32  # micro-batches of a simulated pipeline: twice its stages


def layers_request(batch: int, tied: bool) -> Document:
    """Returns a request for embedding, blocks, norm and head over 16 devices of 4 classes in 4 islands, with one
    micro-batch per sample."""

    def item(name: str, kind: str, units: float, weight: float, **more: Any) -> Document:
        times = {device: [[1, 0.01 * units / speed, 0.02 * units / speed]] for device, speed in SPEEDS.items()}
        bytes_of = {"weight_bytes": weight, "gradient_bytes": weight, "optimiser_bytes": 4 * weight}
        return {
            "name": name, "kind": kind, "times": times, "kept_bytes": 0.6 * units * GIB, "output_bytes": 64e6,
            **bytes_of, **more,
        }  # fmt: skip

    blocks = [item(f"block{number}", "block", 1, 436e6, recompute_bytes=64e6) for number in range(BLOCKS)]
    shared = [{"items": ["embedding", "head"], "weight_bytes": 1e9, "gradient_bytes": 1e9, "optimiser_bytes": 4e9}]
    return {
        "items": [
            item("embedding", "embedding", 0.05, 1e9), *blocks, item("norm", "norm", 0.01, 0),
            item("head", "head", 2.4, 1e9),
        ],
        "ties": shared if tied else [],
        "devices": [
            {"name": name, "kind": name, "island": name, "count": PER_CLASS, "memory_bytes": room * GIB}
            for name, room in zip(SPEEDS, (80, 48, 80, 48), strict=True)
        ],
        "links": [{"between": [name, name], "latency": 1e-5, "seconds_per_byte": 3e-12} for name in SPEEDS],
        "default_link": {"latency": 5e-5, "seconds_per_byte": 8e-11},
        "batch": batch, "micro_batch": 1,
    }  # fmt: skip


def simulated_plan(islands: int, per_island: int) -> Document:
    """Returns a plan of as many pipelines as an island has ranks, with a stage in each island; gradients are reduced
    inside islands, boundaries travel between them over a network card of each rank."""
    pipelines = [
        {"ranks": [island * per_island + number for island in range(islands)], "micro_batches": STEP_BATCHES}
        for number in range(per_island)
    ]
    return {
        "ranks": [{"island": f"island {number}", "count": per_island} for number in range(islands)],
        "stages": [
            {"forward": 0.010 + 0.001 * (number % 3), "backward": 0.020 + 0.002 * (number % 3),
             "boundary_bytes": 1 << 23, "gradient_bytes": 436e6}
            for number in range(islands)
        ],
        "pipelines": pipelines,
        "schedule": "1F1B",
        "rails": {
            "fabric": {"each": "rank", "bytes_per_second": 64e9}, "nic": {"each": "rank", "bytes_per_second": 5e10}
        },
        "transports": {
            "inside": {"chunk_bytes": 1 << 22, "hops": [{"rail": "fabric", "latency": 1e-5}]},
            "between": {"chunk_bytes": 1 << 22, "hops": [{"rail": "nic", "latency": 2e-5}]},
        },
        "links": [{"between": "island", "transport": "inside"}, {"between": "any", "transport": "between"}],
        "reduction": {"buckets": 4},
    }  # fmt: skip


def measure(settings: Settings) -> Document:
    """Measures rounds in which each request is made once."""
    planned = {
        (count, tied): json.dumps(layers_request(count, tied))
        for count in (MICRO_BATCHES[:1] if settings.quick else MICRO_BATCHES) for tied in (False, True)
    }  # fmt: skip
    sizes = [(4, 4)] if settings.quick else [(ISLANDS, PER_ISLAND)]
    simulated = {size: json.dumps(simulated_plan(*size)) for size in sizes}
    seconds: dict[Any, list[float]] = {key: [] for key in (*planned, *simulated)}
    answers: dict[Any, Document] = {}
    for _ in range(settings.rounds(ROUNDS)):
        for asked, ask in ((planned, _C.plan_layers), (simulated, _C.simulate)):
            for key, text in asked.items():
                begin = time.perf_counter()
                answer = ask(text)
                seconds[key].append(time.perf_counter() - begin)
                answers.setdefault(key, json.loads(answer))
    plans = [
        {
            "micro_batches": key[0], "tied": key[1], "seconds": spread(seconds[key]),
            "distance": answers[key]["distance"], "exact": answers[key]["exact"]["search"],
        }
        for key in planned
    ]  # fmt: skip
    steps = [
        {"islands": key[0], "ranks": key[0] * key[1], "seconds": spread(seconds[key]),
         "step_seconds": answers[key]["step_seconds"]}
        for key in simulated
    ]  # fmt: skip
    for name, rows in (("plan", plans), ("simulation", steps)):
        say(f"{name}: at most {max(row['seconds']['median'] for row in rows):.3f} s")
    return {"items": BLOCKS + 3, "devices": PER_CLASS * len(SPEEDS), "plans": plans, "simulations": steps}


def report(document: Document) -> str:
    plans = [
        [
            str(row["micro_batches"]), "yes" if row["tied"] else "no", _text(row["seconds"]), f"{row['distance']:.3f}",
            "yes" if row["exact"] else "no",
        ]
        for row in document["plans"]
    ]  # fmt: skip
    steps = [
        [str(row["ranks"]), str(row["islands"]), _text(row["seconds"]), f"{row['step_seconds']:.3f}"]
        for row in document["simulations"]
    ]
    return (
        "From a request as text to the answer as text, in one thread. Medians of rounds with their 10th to 90th "
        f"percentile.\n\n## Layers\n\n{document['items']} items (128 blocks with embedding, norm and head) in stages "
        f"on {document['devices']} devices of 4 classes. Found are the fastest pipeline of all devices and, beside it, "
        "the best plan of each class alone in any number of pipelines. *Tied*: embedding and head share a weight.\n\n"
        + table(["micro-batches", "tied", "ms", "step, by its bound", "every placement examined or excluded"], plans)
        + "\n## Simulation\n\nOne step of pipelines with a stage in each island, 1F1B with "
        f"{STEP_BATCHES} micro-batches, gradients reduced inside the islands.\n\n"
        + table(["ranks", "islands", "ms", "simulated step, s"], steps)
    )


def _text(seconds: dict[str, float]) -> str:
    return f"{1e3 * seconds['median']:.0f} ({1e3 * seconds['p10']:.0f} to {1e3 * seconds['p90']:.0f})"


# For the aims.


def longest(part: str) -> Any:
    """Measures the milliseconds of each row of "plans" or "simulations"."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in document[part]:
            low, middle, high = (1e3 * row["seconds"][name] for name in ("p10", "median", "p90"))
            found.append(Found(middle, low, high, _case(row)))
        return found

    return measure


def _case(row: Document) -> str:
    if "ranks" in row:
        return f"{row['ranks']} ranks"
    return f"{row['micro_batches']} micro-batches{', tied' if row['tied'] else ''}"
