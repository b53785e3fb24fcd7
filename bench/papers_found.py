# SPDX-License-Identifier: Apache-2.0
"""Atoll's results for the papers' figures and tables: short texts, computed from the JSON files of docs/results."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import kaitian
import uneven
from pipelines_cases import PLANNER
from pipelines_figures import by, row_of, settled, windows
from pipelines_sets import DCBS, DIRECT, FAST, GLOO, MIXED, MPDT, SLOW
from results import RESULTS

Document = dict[str, Any]
MODELS = {"cnn": "CNN", "alexnet": "AlexNet", "resnet": "ResNet", "vgg": "VGG"}
TRANSPORTS = {"Global Gloo": GLOO, "DCBS": DCBS, "DCBS and MPDT": MPDT, "device-direct": DIRECT}
MISSING = "not measured yet"


class MissingError(LookupError):
    """The result file does not exist."""


@cache
def document(name: str, folder: Path = RESULTS) -> Document:
    path = folder / f"{name}.json"
    if not path.exists():
        raise MissingError(name)
    found: Document = json.loads(path.read_text())
    return found


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"


def short(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def kaitian_times() -> str:
    rows = document("kaitian")["rows"]
    best = {name: row for name in kaitian.CONFIGURATIONS if (row := kaitian.best(rows, name))}
    times = ", ".join(f"{name} {row['total_s']:.1f} s" for name, row in best.items())
    tops = ", ".join(f"{name} {100 * best[name]['accuracy'][-1][1]:.1f} %" for name in ("2G", "2M", "2G+2M"))
    saved = [percent(kaitian.saved(rows, pair)) for pair in ("2G", "2M")]
    return f"{times}; 2G+2M saves {saved[0]} to 2G and {saved[1]} to 2M; top-1: {tops}"


def kaitian_shares() -> str:
    texts = []
    for part in document("shares")["parts"]:
        steps = {row["policy"]: row["step"]["median"] for row in part["policies"]}
        best = min(row["step"]["median"] for row in part["sweep"])
        texts.append(
            f"{part['ratio']:g} : 1: equal {1e3 * steps['equal']:.0f} ms, kaitian {1e3 * steps['kaitian']:.0f} ms, "
            f"minmax {1e3 * steps['minmax']:.0f} ms, best of a sweep {1e3 * best:.0f} ms"
        )
    return "; ".join(texts)


def kaitian_overhead() -> str:
    rows = document("kaitian")["rows"]
    return ", ".join(f"{name} {percent(kaitian.overhead(rows, name))}" for name in kaitian.OVERHEAD)


def balancenet(*models: str) -> str:
    texts = []
    for layout in ("1:1:1:1", "4:1:1:1"):
        for model in models:
            steps = {row["contender"]: row["samples_per_s"] for row in document("balancenet")["rows"]
                     if (row["model"], row["layout"]) == (model, layout)}  # fmt: skip
            rule = "Algorithm 1, normalised, live"
            texts.append(
                f"{MODELS[model]} on {layout}: equal {steps['equal']:.0f}, random {steps['random']:.0f}, its rule "
                f"{steps[rule]:.0f}, minmax {steps['minmax']:.0f} samples/s"
            )
    return "; ".join(texts)


def pipeline_throughput() -> str:
    texts = []
    for part in document("pipelines")["parts"]:
        fast, slow = (_of_mixed(part["rows"], layout) for layout in (FAST, SLOW))
        bars = ", ".join(f"{bar} {_tokens(part['rows'], transport)}" for bar, transport in TRANSPORTS.items())
        name = part["pair"]["name"]
        texts.append(f"{name}: mixed by fast-fast {fast}, by slow-slow {slow}, mixed in tokens/s: {bars}")
    return "; ".join(texts)


def _of_mixed(rows: list[Document], layout: str) -> str:
    """Returns, round by round, the rate of the mixed pipeline divided by this one's, both as the planner divides
    them."""
    ratio = by(row_of(rows, MIXED, PLANNER), row_of(rows, layout, PLANNER))
    return percent(None if ratio is None else ratio["median"])


def _tokens(rows: list[Document], transport: str) -> str:
    """The rate of the mixed pipeline as the planner divides it."""
    row = row_of(rows, MIXED, PLANNER, transport)
    return MISSING if row is None else f"{row['tokens_s']['median']:.0f}"


def pipeline_steadiness() -> str:
    texts = []
    for part in document("pipelines_long")["parts"]:
        for row in part["long"]["rows"]:
            of = settled(row, part["long"]["chunk"])
            rate = uneven.figure(row, f"{of['median']:.0f} tokens/s ({of['p10']:.0f} to {of['p90']:.0f})")
            texts.append(f"{part['pair']['name']} {row['layout']} {rate}")
    return "; ".join(texts)


def pipeline_losses() -> str:
    texts = []
    for part in document("pipelines_long")["parts"]:
        long = part["long"]
        last = {row["layout"]: windows(row["losses"])[-1] for row in long["rows"]}
        values = ", ".join(f"{layout} {loss:.4f}" for layout, loss in last.items())
        texts.append(f"{part['pair']['name']}: last loss {values}, one process {windows(long['alone'])[-1]:.4f}")
    return "; ".join(texts)


def case_of(profile: str, part: str = "") -> Document:
    """Returns what a page of split_papers has of this model, with its input as the authors send it."""
    cases = document(f"split_papers{part}")["cases"]
    return next(case for case in cases if (case["profile"], case["encoding"]) == (profile, "as sent"))


def mean(profile: str, environment: str, replay: str, key: str = "seconds") -> float:
    part = "_energy" if key == "joules" else ""
    found: float = case_of(profile, part)["replays"][environment]["rows"][replay][key]["mean"]
    return found


def cuts() -> str:
    case = case_of("nsdi25_VGG19_BN", "_rates")
    offload, *inside, local = (1e3 * row[1] for row in case["cuts"])
    return (
        f"93 Mbit/s: on the server {offload:.0f} ms, the best cut inside {min(inside):.0f} ms, on "
        f"the robot {local:.0f} ms ([picture](split-vgg19_bn-as-sent-cuts.svg))"
    )


def rates() -> str:
    replays = case_of("nsdi25_VGG19_BN")["replays"]
    return ", ".join(f"{name} {8e-6 * replay['rate']:.1f} Mbit/s on average" for name, replay in replays.items())


def operators() -> str:
    texts = []
    for row in document("operators")["rows"]:
        ours = row["ours"]
        texts.append(f"{row['model']} {ours['local']}, {ours['partial']} and {ours['global']}")
    return "local, partial and global: " + "; ".join(texts)


def tensor_parallel() -> str:
    texts = []
    for name, profile in (("ResNet101", "eurosys25_ResNet101"), ("VGG19", "nsdi25_VGG19_BN")):
        times = [1e3 * mean(profile, place, "tensor") for place in ("indoors", "outdoors")]
        joules = [mean(profile, place, "tensor", "joules") for place in ("indoors", "outdoors")]
        local = 1e3 * mean(profile, "indoors", "local")
        texts.append(f"{name}: local {local:.0f} ms; tensor indoors {times[0]:.0f} ms and {joules[0]:.2f} J, outdoors "
                     f"{times[1]:.0f} ms and {joules[1]:.2f} J")  # fmt: skip
    return "; ".join(texts)


def breakdown() -> str:
    texts = []
    for name in ("kapao", "agrnav"):
        rows = case_of(f"nsdi25_{name}", "_breakdown")["replays"]["indoors"]["rows"]
        for replay in ("offload", "cut", "auto, guarded"):
            row = rows[replay]
            total = row["seconds"]["mean"]
            busy = [_mean_of(row[key]) / total for key in ("robot_busy", "link_busy", "server_busy")]
            texts.append(f"{name} {replay}: " + "/".join(f"{100 * share:.0f}" for share in busy) + " %")
    return "indoors, robot/link/server of an inference's time: " + "; ".join(texts)


def _mean_of(value: Any) -> float:
    return float(value["mean"] if isinstance(value, dict) else value)


def sensitivity() -> str:
    points = case_of("nsdi25_kapao", "_rates")["sensitivity"]
    texts = [f"{8e-6 * point['rate']:.0f}: {1e3 * point['seconds']['auto']:.0f}" for point in points]
    return "kapao by `auto`, ms at Mbit/s: " + ", ".join(texts) + " ([picture](split-kapao-as-sent-rates.svg))"


def latencies(*profiles: str) -> str:
    """Latencies of Atoll's own policy, indoors and outdoors, beside local inference."""
    return "`auto`: " + "; ".join(_beside_local(profile, "seconds", 1e3, "ms") for profile in profiles)


def energies(*profiles: str) -> str:
    return "`auto`: " + "; ".join(_beside_local(profile, "joules", 1, "J") for profile in profiles)


def _beside_local(profile: str, key: str, scale: float, unit: str) -> str:
    local = scale * mean(profile, "indoors", "local", key)
    indoors, outdoors = (scale * mean(profile, place, "auto, guarded", key) for place in ("indoors", "outdoors"))
    name = profile.split("_", 1)[1]
    return f"{name} {short(indoors)} {unit} indoors, {short(outdoors)} outdoors (local {short(local)})"
