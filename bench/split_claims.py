# SPDX-License-Identifier: Apache-2.0
"""The gains that follow from the two papers' own tables, and where their figures contradict one another."""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "data" / "intradp" / "paper_tables.csv"
HYBRID, INTRA = "Hybrid-Parallel", "Intra-DP (submission 273)"
PROFILES = {
    "Kapao": "kapao", "AGRNav": "agrnav", "VGG19": "VGG19_BN", "RegNet": "RegNet_X_16GF", "DenseNet": "DenseNet121",
    "DenseNet121": "DenseNet121", "ConvNeXt": "ConvNeXt_Large", "ConvNeXt(197M)": "ConvNeXt_Large",
    "ConvNeXt(88M)": "ConvNeXt_Base",
}  # fmt: skip
OTHERS = ("ALL", "DSCCS", "SPSO-GA")
CLAIMED = {"least latency": 14.9, "most latency": 41.1, "most energy": 35.3}  # percent saved, in the papers' abstracts
LATER = {"most latency": 50.0, "most energy": 75.0}  # of the version of 2025
_APART = 0.05  # the allowed deviation of energy from power times latency
_KEYS = ("latency_mean_ms", "latency_std_ms", "transmission_mean_ms", "power_W_mean", "energy_J_mean")
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {**{key: row[key] for key in ("paper", "table", "model", "system", "environment")},
         **{key: float(row[key]) if row[key] else None for key in _KEYS}}
        for row in rows
    ]  # fmt: skip


@cache
def published() -> list[Row]:
    """Returns the rows of the papers' own tables."""
    return read(PUBLISHED)


def find(rows: list[Row], **wanted: str) -> Row | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def gains(rows: list[Row]) -> list[Row]:
    """Returns, for each model and environment, the shares that Intra-DP saves compared with the fastest and with the
    thriftiest of the others, and with local inference."""
    found = []
    for row in rows:
        if row["system"] != "Intra-DP":
            continue
        same = {key: row[key] for key in ("paper", "model", "environment")}
        others = [other for name in OTHERS if (other := find(rows, **same, system=name))]
        local = find(rows, **same, system="Local")
        if not others or local is None:
            continue
        fastest = min(others, key=lambda other: other["latency_mean_ms"])
        thriftiest = min(others, key=lambda other: other["energy_J_mean"])
        slowest = max(others, key=lambda other: other["latency_mean_ms"])
        found.append({
            **same, "fastest": fastest["system"],
            "latency": 1 - row["latency_mean_ms"] / fastest["latency_mean_ms"],
            "latency to the slowest": 1 - row["latency_mean_ms"] / slowest["latency_mean_ms"],
            "energy": 1 - row["energy_J_mean"] / thriftiest["energy_J_mean"],
            "energy to the most": 1 - row["energy_J_mean"] / max(other["energy_J_mean"] for other in others),
            "latency to local": 1 - row["latency_mean_ms"] / local["latency_mean_ms"],
            "energy to local": 1 - row["energy_J_mean"] / local["energy_J_mean"],
        })  # fmt: skip
    return found


def contradictions(rows: list[Row], spread: list[Row]) -> Iterator[str]:
    """Returns where the tables contradict themselves, the headline, or one another."""
    for row in rows:
        if not row["power_W_mean"] or not row["energy_J_mean"]:
            continue
        expected = row["power_W_mean"] * row["latency_mean_ms"] / 1e3
        if abs(row["energy_J_mean"] / expected - 1) > _APART:
            yield (
                f"{_where(row)}: {row['energy_J_mean']:g} J are printed, {row['power_W_mean']:g} W for "
                f"{row['latency_mean_ms']:g} ms are {expected:.2f} J"
            )
        if row["latency_std_ms"] and row["latency_std_ms"] > 3 * row["latency_mean_ms"]:
            yield (f"{_where(row)}: a standard deviation of {row['latency_std_ms']:g} ms at a mean of "
                   f"{row['latency_mean_ms']:g} ms")  # fmt: skip
        if (row["transmission_mean_ms"] or 0) > row["latency_mean_ms"]:
            yield f"{_where(row)}: transmission takes longer than the inference"
    for gain in spread:
        if gain["latency to local"] < 0:
            yield f"{_where(gain)}: Intra-DP is slower than local inference by {-gain['latency to local']:.0%}"
        if gain["energy"] < 0:
            yield f"{_where(gain)}: Intra-DP needs {-gain['energy']:.0%} more energy than the thriftiest of the others"


def headline(spread: list[Row]) -> Row:
    """Returns the papers' headline beside what their tables give: percent saved compared with the fastest and the
    thriftiest of the others."""
    latency = [100 * gain["latency"] for gain in spread]
    return {
        "least latency": min(latency), "most latency": max(latency),
        "most latency to any": max(100 * gain["latency to the slowest"] for gain in spread),
        "most energy": max(100 * gain["energy"] for gain in spread),
        "most energy to any": max(100 * gain["energy to the most"] for gain in spread),
        "most latency to local": max(100 * gain["latency to local"] for gain in spread),
        "most energy to local": max(100 * gain["energy to local"] for gain in spread),
    }  # fmt: skip


def _where(row: Row) -> str:
    return f"{row['paper']}, {row['model']}, {row.get('system', 'Intra-DP')}, {row['environment']}"
