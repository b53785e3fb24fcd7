# SPDX-License-Identifier: Apache-2.0
"""Accuracy with uneven batches: weighted and unweighted gradients, and three kinds of batch normalisation, against one
process with the whole batch."""

import math
import statistics
from typing import Any

import uneven
from contenders import Place, TorchRanks
from results import Settings, say, table

TITLE = "accuracy with uneven batches"
SEEDS = 5
SHARES = [4.0, 1.0, 1.0, 1.0]
NORMS = {"local": "each rank's own", "merged": "own, merged before evaluation", "sync": "over all ranks"}
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 95 %


def measure(settings: Settings) -> dict[str, Any]:
    seeds = 2 if settings.quick else SEEDS
    steps = 4 if settings.quick else 120
    rows = []

    def train(ranks: TorchRanks, title: str, **wanted: Any) -> None:
        for seed in range(1, seeds + 1):
            run = uneven.Run(
                "batch_normed", batch=32 if settings.quick else 64, steps=steps, tests=[steps], seed=seed, rate=0.05,
                drops=[steps * 3 // 4], **wanted,
            )  # fmt: skip
            row = uneven.train(ranks, run)
            rows.append({"case": title, "seed": seed, "accuracy": row["accuracy"][-1][1]})
        say(f"{title}: {statistics.mean(row['accuracy'] for row in rows if row['case'] == title):.4f}")

    place = Place(environment=(("ATOLL_DEVICE", "cpu"),))
    with TorchRanks([place], ["atoll"]) as ranks:
        train(ranks, "one process", policy="equal")
    with TorchRanks([place] * len(SHARES), ["atoll"]) as ranks:
        for norm in NORMS:
            train(ranks, f"weighted, {norm}", policy="fixed", shares=SHARES, norm=norm)
            train(ranks, f"unweighted, {norm}", weighted=False, shares=SHARES, norm=norm)
    return {"rows": rows, "seeds": seeds, "steps": steps, "shares": SHARES}


def differences(rows: list[dict[str, Any]], case: str) -> dict[str, float]:
    """Returns the differences to one process with the same seed, in percentage points: the mean and its 95 % interval
    (Student's t)."""
    alone = {row["seed"]: row["accuracy"] for row in rows if row["case"] == "one process"}
    of = [100 * (row["accuracy"] - alone[row["seed"]]) for row in rows if row["case"] == case]
    wide = STUDENT.get(len(of) - 1, 2.0) * statistics.stdev(of) / math.sqrt(len(of)) if len(of) > 1 else math.inf
    mean = statistics.mean(of)
    return {"mean": mean, "low": mean - wide, "high": mean + wide}


def report(document: dict[str, Any]) -> str:
    rows = document["rows"]
    shares = " : ".join(f"{share:g}" for share in document["shares"])
    text = (
        f"A small network with batch normalisation on digits at 3 x 32 x 32, global batch 64, {document['steps']} "
        f"steps, {document['seeds']} seeds, on CPU ranks with shares {shares}. Differences are to one process with the "
        "whole batch and the same seed and order of samples, in percentage points, with their 95 % interval. "
        "Unweighted is KAITIAN's sampler with stock DistributedDataParallel. KAITIAN's paper reports 83.4 % of 2G+2M "
        "against 85.3 % and 85.5 % without a number of runs.\n\n"
    )
    cells = []
    for case in dict.fromkeys(row["case"] for row in rows):
        of = [row["accuracy"] for row in rows if row["case"] == case]
        shown = ""
        if case != "one process":
            found = differences(rows, case)
            shown = f"{found['mean']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"
        name, _, norm = case.partition(", ")
        cells.append(
            [name, NORMS.get(norm, ""), f"{statistics.mean(of):.2%}", f"{min(of):.2%} to {max(of):.2%}", shown]
        )
    return text + table(["gradients", "batch statistics", "top-1, mean", "range", "difference, points"], cells)
