# SPDX-License-Identifier: Apache-2.0
"""BalanceNet's experiment: equal, random and its own batches on four equal devices, as in the paper, and on one fast
and three slow ones."""

from dataclasses import dataclass
from typing import Any

import plots
import uneven
from atoll.bench.block import quantile
from contenders import TorchRanks
from results import Settings, say, table

TITLE = "BalanceNet's policies against equal, random and minmax"
UPDATES = 2400  # the paper's number
FRACTION = 0.05  # the share of them that is run unless the command says otherwise
AVERAGED = 20  # updates; the paper averages 100
BASELINE = 64  # the paper's B, of one device: all other policies have four times that for all devices
LAYOUTS = {"1:1:1:1": (1, 1, 1, 1), "4:1:1:1": (4, 1, 1, 1)}
ACCURACY = {"digits": 0.9, "text": 0.2}


@dataclass(frozen=True)
class Model:
    name: str
    speed: float  # of the slow devices; the slower they are, the more easily this machine keeps their times
    data: str = "digits"
    rate: float = 0.05


MODELS = (Model("cnn", 0.1), Model("alexnet", 0.2), Model("resnet", 0.1), Model("vgg", 0.1),
          Model("bytes", 0.2, "text", 0.5))  # fmt: skip
# The paper's milliseconds of an update: BalanceNet, equal, random.
THEIRS = {"cnn": (0.103, None, None), "alexnet": (0.212, 0.217, 0.244), "resnet": (0.263, 0.323, 0.283),
          "vgg": (0.263, None, None)}  # fmt: skip


@dataclass(frozen=True)
class Contender:
    title: str
    policy: str
    form: str = "normalised"
    is_live: bool = False  # planned again in every interval
    theirs: int = -1  # the index of its figure in THEIRS


CONTENDERS = (
    Contender("equal", "equal", theirs=1),
    Contender("random", "random", theirs=2),
    Contender("equation 5, literal", "balancenet-eq5", "literal", theirs=0),
    Contender("equation 5, normalised", "balancenet-eq5"),
    Contender("Algorithm 1, literal, live", "balancenet-alg1", "literal", is_live=True, theirs=0),
    Contender("Algorithm 1, normalised, live", "balancenet-alg1", is_live=True),
    Contender("minmax", "minmax"),
)


def measure(settings: Settings) -> dict[str, Any]:
    fraction = settings.fraction or FRACTION
    steps = _steps(settings)
    models = (MODELS[0],) if settings.quick else MODELS
    layouts = {"4:1:1:1": LAYOUTS["4:1:1:1"]} if settings.quick else LAYOUTS
    rows = [row for model in models for layout in layouts for row in _measure(settings, model, layout)]
    document = {"rows": rows, "steps": steps, "fraction": fraction, "baseline": _baseline(settings)}
    settings.output.mkdir(parents=True, exist_ok=True)
    for layout in layouts:
        (settings.output / f"balancenet-{layout.replace(':', '')}.svg").write_text(_plot(rows, layout))
    return document


def _steps(settings: Settings) -> int:
    return 4 if settings.quick else max(2 * AVERAGED, round(UPDATES * (settings.fraction or FRACTION)))


def _baseline(settings: Settings) -> int:
    return 4 if settings.quick else BASELINE


def _measure(settings: Settings, model: Model, layout: str) -> list[dict[str, Any]]:
    waiting = list(CONTENDERS[-3:] if settings.quick else CONTENDERS)
    rows = []
    while waiting:  # after a contender whose ranks ended, the others get new ranks
        with TorchRanks(uneven.places(_devices(settings, model, layout)), ["atoll"]) as ranks:
            while waiting:
                row = _row(settings, ranks, model, layout, waiting.pop(0))
                rows.append(row)
                if "failed" in row:
                    break
    return rows


def _devices(settings: Settings, model: Model, layout: str) -> list[uneven.Device]:
    faster = 20.0 if settings.quick else 1.0
    return [uneven.Device("gpu", model.speed * faster * part) for part in LAYOUTS[layout]]


def _row(settings: Settings, ranks: TorchRanks, model: Model, layout: str, contender: Contender) -> dict[str, Any]:
    every = 2 if settings.quick else AVERAGED
    steps = _steps(settings)
    batch = _baseline(settings) * (1 if contender.form == "literal" else len(LAYOUTS[layout]))
    run = uneven.Run(
        model.name, data=model.data, batch=batch, steps=steps, policy=contender.policy, form=contender.form,
        interval=every if contender.is_live else 0, rate=model.rate, tests=list(range(every, steps + 1, every)),
    )  # fmt: skip
    row = {"model": model.name, "layout": layout, "contender": contender.title}
    try:
        trained = uneven.train(ranks, run)
    except RuntimeError as error:
        say(f"{model.name}, {layout}, {contender.title}: failed: {error}")
        return {**row, "failed": str(error)}
    say(f"{model.name}, {layout}, {contender.title}: {trained['step']['median'] * 1e3:.1f} ms")
    found = uneven.seconds_to(trained, ACCURACY[model.data])
    return {**row, "to_accuracy_s": found, "averages_s": averages(trained["steps_s"], every), **trained}


def averages(seconds: list[float], every: int) -> list[float]:
    """Returns averages over `every` updates, which is how the paper states them."""
    return [sum(seconds[at : at + every]) / every for at in range(0, len(seconds) - every + 1, every)]


def mean_update(row: dict[str, Any]) -> dict[str, float]:
    """Summarises all averages except the first, which includes the start."""
    of = row["averages_s"][1:] or row["averages_s"]
    return {"mean": sum(of) / len(of), "low": min(of), "high": max(of), "median": quantile(of, 0.5)}


def over_others(rows: list[dict[str, Any]], model: str, layout: str) -> float | None:
    """Returns minmax's samples per second divided by those of the best other policy."""
    found = {
        row["contender"]: row
        for row in rows
        if (row["model"], row["layout"]) == (model, layout) and "failed" not in row
    }
    if any(row["late"] for row in found.values()) or "minmax" not in found or len(found) < 2:
        return None
    others = [row["samples_per_s"] for name, row in found.items() if name != "minmax"]
    return float(found["minmax"]["samples_per_s"] / max(others))


def work_done(row: dict[str, Any], baseline: int) -> float:
    """Returns the samples of an update as a share of those of equal batches of the baseline."""
    return float(sum(row["batches"]) / (baseline * len(row["batches"])))


def _plot(rows: list[dict[str, Any]], layout: str) -> str:
    groups: dict[str, dict[str, float]] = {}
    for row in uneven.counted([row for row in rows if "failed" not in row]):
        if row["layout"] == layout:
            groups.setdefault(row["model"], {})[row["contender"]] = row["samples_per_s"]
    return plots.bars(f"Samples per second, devices {layout}", "samples/s", groups)


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """Without the times of single updates, whose medians and averages are there, and without what was measured for
    plans."""
    left_out = ("steps_s", "compute_s", "profiles")
    rows = [{key: value for key, value in row.items() if key not in left_out} for row in document["rows"]]
    return {**{key: document[key] for key in ("steps", "fraction", "baseline")}, "rows": rows}


def report(document: dict[str, Any]) -> str:
    rows, baseline = document["rows"], document["baseline"]
    text = (
        f"Four devices, {document['steps']} updates ({document['fraction']:.0%} of the paper's {UPDATES}), averaged "
        f"per {AVERAGED}. The paper's baseline batch B is {baseline} for a device: equal, random, minmax and the "
        f"normalised forms cut {4 * baseline} samples; the literal forms take what the paper's rule gives for B, which "
        "is less work per update. Live forms are planned again after each average. The "
        "training time is the slowest device's forward and backward pass; the rest of an update is communication and "
        "the optimizer. Networks are the paper's in kind, narrower; samples are digits, and the standard library's "
        f"source for the byte model. {uneven.MODELLED} The paper's milliseconds are of its own machine.\n"
    )
    for layout in dict.fromkeys(row["layout"] for row in rows):
        text += f"\n## Devices {layout}\n\n![Samples per second](balancenet-{layout.replace(':', '')}.svg)\n\n"
        text += table(
            ["model", "policy", "batches", "of the work", "update ms, range", "training ms", "rest ms", "samples/s",
             "to accuracy, s", "the paper's ms"],
            [_cells(row, baseline) for row in rows if row["layout"] == layout],
        )  # fmt: skip
    for row in rows:
        if "failed" in row:
            text += f"\n{row['contender']} failed on {row['model']}, devices {row['layout']}: {row['failed']}\n"
    return text + f"\nAccuracies: {', '.join(f'{value:.0%} of {name}' for name, value in ACCURACY.items())}.\n"


def _cells(row: dict[str, Any], baseline: int) -> list[str]:
    if "failed" in row:
        return [row["model"], row["contender"], "failed", *[""] * 8]
    update = mean_update(row)
    contender = next(one for one in CONTENDERS if one.title == row["contender"])
    theirs = THEIRS.get(row["model"], (None,) * 3)[contender.theirs] if contender.theirs >= 0 else None
    shown = f"{update['mean'] * 1e3:.1f} ({update['low'] * 1e3:.1f} to {update['high'] * 1e3:.1f})"
    seconds = row["to_accuracy_s"]
    return [
        row["model"], row["contender"], uneven.batches_text(row), f"{work_done(row, baseline):.0%}",
        uneven.figure(row, shown), uneven.figure(row, f"{row['compute']['median'] * 1e3:.1f}"),
        uneven.figure(row, f"{row['apart']['median'] * 1e3:.1f}"), uneven.figure(row, f"{row['samples_per_s']:.0f}"),
        uneven.figure(row, "not reached" if seconds is None else f"{seconds:.1f}"),
        "" if theirs is None or row["layout"] != "1:1:1:1" else f"{theirs:g}",
    ]  # fmt: skip
