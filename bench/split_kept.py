# SPDX-License-Identifier: Apache-2.0
"""What the pages of split_papers need of its document."""

from collections.abc import Callable, Iterable
from typing import Any

Document = dict[str, Any]
NAMES = ("profile", "model", "source", "encoding")
QUANTILES = ("p50", "p95", "p99")
WITH_QUANTILES = ("local", "offload", "offload, guarded", "auto, guarded")


def latencies(document: Document) -> Document:
    cases = [
        _only(case, (*NAMES, "robot_seconds")) | {"replays": _replays(case, _seconds, ("rate", "bound", "cut"))}
        for case in document["cases"]
    ]
    return {"period": document["period"], "left_out": document["left_out"], "cases": cases}


def energy(document: Document) -> Document:
    cases = [
        {**_only(case, NAMES), "watts": _only(case["watts"], ("compute_watts",)), "replays": _replays(case, _joules)}
        for case in document["cases"]
    ]
    return {"period": document["period"], "cases": cases}


def breakdown(document: Document) -> Document:
    cases = [
        {**_only(case, NAMES), "replays": _replays(case, _busy)}
        for case in document["cases"]
        if case["encoding"] == "as sent"
    ]
    return {"period": document["period"], "cases": cases}


def rates(document: Document) -> Document:
    """Returns of the cuts only both ends and the best one between them."""
    cases = []
    for case in document["cases"]:
        first, *inside, last = case["cuts"]
        points = [
            {"rate": point["rate"], "bound": point["bound"],
             "seconds": {plan["policy"]: plan["seconds"] for plan in point["plans"]}}
            for point in case["sensitivity"]
        ]  # fmt: skip
        cuts = [first, min(inside, key=lambda row: row[1]), last]
        cases.append({**_only(case, NAMES), "cuts": cuts, "sensitivity": points})
    return {"period": document["period"], "cases": cases}


def forecasts(document: Document) -> Document:
    """Both halves of the record as one row: the mean of the means, and the larger one of each quantile."""
    keys = ("profile", "encoding", "forecast", "quantile", "sees_every_bin", "guard")
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for row in document["study"]:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    rows = []
    for group, found in groups.items():
        seconds = {"mean": sum(row["seconds"]["mean"] for row in found) / len(found)}
        seconds |= {name: max(row["seconds"][name] for row in found) for name in QUANTILES}
        joules = sum(row["joules"] for row in found) / len(found)
        rows.append({**dict(zip(keys, group, strict=True)), "seconds": seconds, "joules": joules})
    return {"period": document["period"], "study": rows}


def _only(of: Document, keys: Iterable[str]) -> Document:
    return {key: of[key] for key in keys}


def _replays(case: Document, of_row: Callable[[str, Document], Document], facts: Iterable[str] = ()) -> Document:
    return {
        environment: {**_only(of, facts), "rows": {name: of_row(name, row) for name, row in of["rows"].items()}}
        for environment, of in case["replays"].items()
    }


def _seconds(name: str, row: Document) -> Document:
    return {"seconds": _only(row["seconds"], ("mean", "std", *(QUANTILES if name in WITH_QUANTILES else ())))}


def _joules(_name: str, row: Document) -> Document:
    return {"joules": _only(row["joules"], ("mean", "std")), "watts": row["watts"]}


def _busy(_name: str, row: Document) -> Document:
    means = {key: _only(row[key], ("mean",)) for key in ("link_busy", "seconds")}
    return {"robot_busy": row["robot_busy"], "server_busy": row["server_busy"], **means}
