# SPDX-License-Identifier: Apache-2.0
"""The tables and figures of Intra-DP and Hybrid-Parallel, computed from their published profiles and recorded links by
all policies: simulated, no inference is run."""

from pathlib import Path
from typing import Any

import plots
import split_kept
import split_tables
from atoll.infer.planning import models, trace
from atoll.infer.planning.watts import watts_of
from atoll.plan.documents import plan_operators as plan
from result_files import Part
from results import ROOT, Settings, say

TITLE = "dividing published models between robot and server, simulated"
SIMULATED = "published profiles of a robot and a server, and two recorded links"  # a busy machine makes no difference
DATA = ROOT / "tests" / "data" / "intradp"
TRACES = {"indoors": "bandwidth_indoors.csv", "outdoors": "bandwidth_outdoors.csv"}
PERIOD = 0.5  # seconds between inputs, each of which has the link to itself: one input per bin
MBIT = 1e6 / 8
RATES = [rate * MBIT for rate in (10, 20, 40, 73, 93, 150, 300, 1000)]
KNOWN = [rate * 1e6 for rate in (1, 2, 3, 5, 7, 10, 15, 20, 30)]  # rates for policies that know the rate
FEW = [rate * 1e6 for rate in (1, 3, 7, 12, 20)]  # fewer for policies whose plans take long
EVALUATIONS = 2000
INPUTS = ("as sent", "compact")
CONSTANT = ["local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "hybrid-parallel", "auto"]
LAST = {"forecast": "last", "sees_every_bin": True}
REPLAYS: dict[str, dict[str, Any]] = {
    "local": {"policy": "local"},
    "offload": {"policy": "offload"},
    "stream": {"policy": "stream"},
    "cut": {"policy": "cut", "rates": KNOWN},
    "energy": {"policy": "energy", "rates": KNOWN},
    "tensor": {"policy": "tensor"},
    "intra-dp": {"policy": "intra-dp", "rates": FEW},
    "hybrid-parallel": {"policy": "hybrid-parallel", "rates": FEW},
    "auto, last bin": {"policy": "auto", **LAST},
    "offload, guarded": {"policy": "offload", "guard": True},
    "stream, guarded": {"policy": "stream", "guard": True},
    "auto, guarded": {"policy": "auto", "guard": True},
    "oracle": {"policy": "auto", "forecast": "oracle"},
}
STUDIED = (("nsdi25_VGG19_BN", "compact"), ("nsdi25_VGG19_BN", "as sent"), ("nsdi25_kapao", "as sent"),
           ("nsdi25_agrnav", "compact"))  # fmt: skip
FORECASTS = ("last", "aged", "recent", "ar1", "neighbours", "long-run")
DRAWN = ("nsdi25_VGG19_BN", "nsdi25_kapao", "nsdi25_agrnav", "nsdi25_DenseNet121")
SEARCH_SECONDS = 0.3

kept, report = split_kept.latencies, split_tables.latencies
PAGES = {
    "split_papers_energy": Part(f"{TITLE}: energy", split_tables.energy, split_kept.energy),
    "split_papers_breakdown": Part(f"{TITLE}: where the time goes", split_tables.breakdown, split_kept.breakdown),
    "split_papers_rates": Part(f"{TITLE}: at constant rates", split_tables.rates, split_kept.rates),
    "split_papers_forecasts": Part(f"{TITLE}: forecasts", split_tables.forecasts, split_kept.forecasts),
}


def measure(settings: Settings) -> dict[str, Any]:
    paths = sorted((DATA / "profiles").glob("*.json"))
    if settings.quick:
        paths = [path for path in paths if path.stem == "nsdi25_VGG19_BN"]
    cases, left_out = [], []
    for path in paths:
        for encoding in INPUTS:
            if encoding == "compact" and is_compact(path):
                continue
            try:
                cases.append(case_of(path, encoding, settings.quick))
                say(f"{path.stem}, {encoding}")
            except ValueError as error:
                left_out.append({"profile": path.stem, "reason": str(error)})
                break
    study = [row for name, encoding in STUDIED[: 1 if settings.quick else None] for row in study_of(name, encoding)]
    document = {"simulated": SIMULATED, "cases": cases, "left_out": left_out, "study": study, "period": PERIOD}
    settings.output.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawings(cases).items():
        (settings.output / f"{name}.svg").write_text(drawing)
    return document


def model_of(path: Path, encoding: str) -> models.Model:
    """Returns the model with its input as the authors send it, or losslessly: a byte per pixel and channel, a bit per
    voxel."""
    sent = models.read(str(path))
    if encoding == "as sent":
        return sent
    values = sent.input_values
    return models.read(str(path), values // 8 if sent.name == "agrnav" else min(values, sent.input_bytes))


def tight(robot_seconds: float) -> float:
    """Returns a guard's deadline: the robot's own time plus 2 %, but at most plus 4 ms. Local execution then begins
    nearly at once, so that no inference takes longer than without a server."""
    return robot_seconds + min(0.02 * robot_seconds, 0.004)


def by_deadline(how: dict[str, Any], robot_seconds: float) -> dict[str, Any]:
    """Returns the replay, with that deadline if it has a guard."""
    return how | ({"deadline": tight(robot_seconds)} if how.get("guard") else {})


def is_compact(path: Path) -> bool:
    """Returns whether the authors themselves send the input in the compact encoding."""
    return model_of(path, "compact").input_bytes == model_of(path, "as sent").input_bytes


def request_of(model: models.Model, rate: float) -> tuple[dict[str, Any], str]:
    power, source = watts_of(str(DATA / "power_from_logs.csv"), model.source, model.name)
    return {"model": model.request, "link": {"up": rate, "half_duplex": True}, "power": power, "chunks": 8,
            "evaluations": EVALUATIONS, "search_seconds": SEARCH_SECONDS}, source  # fmt: skip


def recorded(environment: str) -> trace.Trace:
    return trace.read(DATA / TRACES[environment])


def case_of(path: Path, encoding: str, quick: bool) -> dict[str, Any]:
    """Simulates one model with one encoding of its input: at constant rates, at every cut, and over both links."""
    model = model_of(path, encoding)
    request, watts_source = request_of(model, 93 * MBIT)
    constant = plan({**request, "policies": CONSTANT, "rates": RATES, "cuts": True})
    case = {
        "profile": path.stem, "model": model.name, "source": model.source, "encoding": encoding,
        "input_bytes": model.input_bytes, "watts": request["power"], "watts_source": watts_source,
        **{key: constant[key] for key in ("robot_seconds", "server_seconds", "cuts")},
        "guard_deadline": tight(constant["robot_seconds"]), "sensitivity": constant["sensitivity"], "replays": {},
    }  # fmt: skip
    for environment in TRACES:
        link = recorded(environment)
        if quick:
            link = link.part(0, 0.05)
        request, _ = request_of(model, link.median())
        request |= {"policies": [], "trace": {**link.request(), "period": PERIOD, "apart": True}}
        answer = plan({**request, "replay": [by_deadline(how, constant["robot_seconds"]) for how in REPLAYS.values()]})
        rows = zip(REPLAYS, answer["replay"], strict=True)
        mean = sum(link.up) / len(link.up)
        bound = plan({**request_of(model, mean)[0], "policies": ["cut"]})
        case["replays"][environment] = {
            "rate": mean, "bound": bound["bound"]["seconds"], "cut": bound["plans"][0]["seconds"], "rows": dict(rows)
        }  # fmt: skip
    return case


def study_of(name: str, encoding: str) -> list[dict[str, Any]]:
    """Compares forecasts outdoors: each half of the record is predicted with what was learned from the other half."""
    model = model_of(DATA / "profiles" / f"{name}.json", encoding)
    link = recorded("outdoors")
    halves = (link.part(0, 0.5), link.part(0.5, 1))
    request, _ = request_of(model, link.median())
    alone = plan({**request, "policies": ["local"]})["robot_seconds"]
    rows = []
    for turn, (past, now) in enumerate((halves, halves[::-1])):
        wanted, names = [], []
        for forecast in (*FORECASTS, "oracle"):
            for quantile in (None, 0.95) if forecast != "oracle" else (None,):
                for sees in (True, False):
                    for guard in (False, True):
                        how = {"policy": "auto", "forecast": forecast, "sees_every_bin": sees, "guard": guard}
                        wanted.append(by_deadline(how, alone) | ({} if quantile is None else {"quantile": quantile}))
                        names.append({**how, "quantile": quantile})
        one = {**now.request(), "period": PERIOD, "apart": True, "past": list(past.up)}
        answer = plan({**request, "policies": [], "trace": one, "replay": wanted})
        for what, row in zip(names, answer["replay"], strict=True):
            rows.append({"profile": name, "encoding": encoding, "half": turn, **what, "seconds": row["seconds"],
                         "joules": row["joules"]["mean"], "inferences": row["inferences"]})  # fmt: skip
    return rows


def drawings(cases: list[dict[str, Any]]) -> dict[str, str]:
    """Draws the papers' figures: latency at every cut, and by the rate of the link."""
    found = {}
    for case in cases:
        if case["profile"] not in DRAWN:
            continue
        stem = f"split-{case['model'].lower()}-{case['encoding'].replace(' ', '-')}"
        title = f"{case['model']}, input {case['encoding']}"
        parts = {"all": 1, "robot": 3, "link": 4, "server": 5}
        lines = {name: [(row[0], 1e3 * row[place]) for row in case["cuts"]] for name, place in parts.items()}
        found[f"{stem}-cuts"] = plots.lines(f"{title}: everything up to an operator on the robot, 93 Mbit/s",
                                            "operator", "ms", lines)  # fmt: skip
        found[f"{stem}-rates"] = plots.lines(f"{title}: latency by rate of the link", "Mbit/s", "ms", by_rate(case))
    return found


def by_rate(case: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {"bound": []}
    for point in case["sensitivity"]:
        rate = point["rate"] / MBIT
        if rate > 310:
            continue
        lines["bound"].append((rate, 1e3 * point["bound"]))
        for each in point["plans"]:
            if each["policy"] in ("local", "stream", "cut", "intra-dp", "auto"):
                lines.setdefault(each["policy"], []).append((rate, 1e3 * each["seconds"]))
    return lines
