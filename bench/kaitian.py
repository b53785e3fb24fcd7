# SPDX-License-Identifier: Apache-2.0
"""KAITIAN's experiment: MobileNetV2 on six sets of two kinds of devices, as fast as the paper's own."""

from typing import Any

import plots
import uneven
from contenders import TorchRanks
from results import Settings, say, table

TITLE = "KAITIAN's six configurations"
EPOCHS = 50  # of the paper
FRACTION = 0.2  # of them, unless the command says otherwise
RATIO = 236.4 / 166.3  # how much faster the paper's MLU is than its GPU, by its own times
SLOW = 0.07
DEVICES = {"G": uneven.Device("gpu", SLOW), "M": uneven.Device("mlu", SLOW * RATIO)}
CONFIGURATIONS = {"2G": "GG", "2M": "MM", "1G+1M": "GM", "2G+1M": "GGM", "1G+2M": "GMM", "2G+2M": "GGMM"}
SUBSETS = {"2G+1M": ("2G", "1G+1M"), "1G+2M": ("2M", "1G+1M"), "2G+2M": ("2G", "2M", "1G+1M", "2G+1M", "1G+2M")}
POLICIES = ("equal", "kaitian", "minmax")
THEIRS = {"2G": (236.4, 85.3), "2M": (166.3, 85.5), "2G+1M": (175.0, None), "2G+2M": (137.4, 83.4)}  # seconds, percent
OVERHEAD = {"2G": 0.028, "2M": 0.043}  # of the paper's framework over the library alone
BACKENDS = {"atoll": "Atoll", "inner": "the library alone"}


def measure(settings: Settings) -> dict[str, Any]:
    data, folder = ("cifar10", str(settings.data)) if settings.data else ("digits", "")
    samples = 50_000 if settings.data else 1438
    fraction = settings.fraction or FRACTION
    steps = 2 if settings.quick else round(EPOCHS * fraction * -(-samples // 256))
    run = uneven.Run(
        "mobilenet", {"width": 0.1 if settings.quick else 0.25}, data, folder, batch=16 if settings.quick else 256,
        steps=steps, warm_up=1 if settings.quick else 3, drops=[steps // 2, steps * 3 // 4], tests=[steps],
    )  # fmt: skip
    names = ("2G", "2M", "2G+2M") if settings.quick else CONFIGURATIONS
    rows = [row for name in names for row in _measure(name, run, 20.0 if settings.quick else 1.0)]
    document = {"rows": rows, "data": data, "epochs": EPOCHS * fraction, "fraction": fraction, "steps": steps,
                "batch": run.batch, "width": run.options["width"]}  # fmt: skip
    settings.output.mkdir(parents=True, exist_ok=True)
    for name, drawing in _plots(rows).items():
        (settings.output / f"{name}.svg").write_text(drawing)
    return document


def _measure(name: str, run: uneven.Run, faster: float) -> list[dict[str, Any]]:
    layout = CONFIGURATIONS[name]
    devices = [uneven.Device(DEVICES[kind].kind, DEVICES[kind].speed * faster) for kind in layout]
    is_mixed = len(set(layout)) > 1
    rows = []
    backends = ["atoll"] if is_mixed else [*BACKENDS]
    with TorchRanks(uneven.places(devices), backends) as ranks:
        for backend in backends:
            for policy in POLICIES if is_mixed else POLICIES[:1]:
                row = uneven.train(ranks, uneven.Run(**{**vars(run), "policy": policy, "backend": backend}))
                say(f"{name}, {backend}, {policy}: {row['total_s']:.1f} s, accuracy {row['accuracy'][-1][1]:.3f}")
                rows.append({"configuration": name, "backend": backend, **row})
    return rows


def _plots(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Plots like the paper's figures 2 (times and accuracies) and 4."""
    times, accuracies, alone = {}, {}, {}
    for row in uneven.counted(rows):
        name, backend = row["configuration"], row["backend"]
        if name in OVERHEAD:
            alone.setdefault(name, {})[BACKENDS[backend]] = row["total_s"]
        if backend == "atoll":
            times.setdefault(name, {})[row["policy"]] = row["total_s"]
            accuracies.setdefault(name, {})[row["policy"]] = 100 * row["accuracy"][-1][1]
    return {
        "kaitian": plots.bars("Seconds of training by set of devices and policy", "s", times),
        "kaitian-accuracy": plots.bars("Top-1 accuracy by set of devices and policy", "%", accuracies),
        "kaitian-overhead": plots.bars("Seconds of training on one island", "s", alone),
    }


def best(rows: list[dict[str, Any]], name: str, policy: str = "minmax") -> dict[str, Any] | None:
    """Returns Atoll's training on these devices by that policy, or by equal shares if all are of one kind."""
    found = [row for row in uneven.counted(rows) if (row["configuration"], row["backend"]) == (name, "atoll")]
    chosen = [row for row in found if row["policy"] == policy] or (found if len(found) == 1 else [])
    return chosen[0] if chosen else None


def of_ideal(rows: list[dict[str, Any]], name: str, policy: str = "minmax") -> float | None:
    """Returns samples per second as a share of what these devices reach in pairs of one kind."""
    pairs = {kind: best(rows, f"2{kind}") for kind in DEVICES}
    row = best(rows, name, policy)
    if row is None or None in pairs.values():
        return None
    layout = CONFIGURATIONS[name]
    ideal = sum(layout.count(kind) * pair["samples_per_s"] / 2 for kind, pair in pairs.items() if pair)
    return float(row["samples_per_s"] / ideal)


def saved(rows: list[dict[str, Any]], against: str, policy: str = "minmax") -> float | None:
    """Returns the share of the time of `against` that 2G+2M saves."""
    ours, other = best(rows, "2G+2M", policy), best(rows, against)
    return 1 - ours["total_s"] / other["total_s"] if ours and other else None


def gain_over_subsets(rows: list[dict[str, Any]], name: str) -> float | None:
    """Returns the time divided by that of the fastest set with fewer of its devices, minus 1: below 0 the additional
    device helps."""
    row = best(rows, name)
    others = [other["total_s"] for other in (best(rows, subset) for subset in SUBSETS[name]) if other]
    return row["total_s"] / min(others) - 1 if row and others else None


def overhead(rows: list[dict[str, Any]], name: str) -> float | None:
    """Returns the additional time of the training over Atoll as a share of that over the island's library alone."""
    totals = {row["backend"]: row["total_s"] for row in uneven.counted(rows) if row["configuration"] == name}
    return totals["atoll"] / totals["inner"] - 1 if len(totals) == len(BACKENDS) else None


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def report(document: dict[str, Any]) -> str:
    rows = document["rows"]
    text = (
        f"MobileNetV2 at {document['width']} of its width, {document['data']} at 3 x 32 x 32, global batch "
        f"{document['batch']}, SGD 0.1 with momentum 0.9 and decay 5e-4, rates falling to a tenth at half and three "
        f"quarters: {document['epochs']:g} epochs, {document['fraction']:.0%} of the paper's {EPOCHS} "
        f"({document['steps']} steps). G is a GPU, M an MLU, {RATIO:.2f} times as fast as by the paper's times. "
        f"Ranks have one compute thread each. {uneven.MODELLED} Compare ratios with the paper's, not seconds.\n\n"
        "![Seconds of training](kaitian.svg)\n\n![Top-1 accuracy](kaitian-accuracy.svg)\n\n"
    )
    cells = []
    for row in rows:
        if row["backend"] != "atoll":
            continue
        name, policy = row["configuration"], row["policy"]
        seconds, accuracy = THEIRS.get(name, (None, None))
        of = of_ideal(rows, name, policy) if not row["late"] else None
        cells.append([
            name, policy, uneven.batches_text(row), uneven.figure(row, f"{row['total_s']:.1f}"),
            uneven.figure(row, uneven.milliseconds(row["step"])), f"{row['accuracy'][-1][1]:.1%}", percent(of),
            f"{seconds:g}" if seconds else "", f"{accuracy:g}%" if accuracy else "",
        ])  # fmt: skip
    titles = ["devices", "policy", "batches", "total s", "step ms, 10 to 90 %", "top-1", "of the ideal sum",
              "the paper's s", "its top-1"]  # fmt: skip
    return text + table(titles, cells) + _claims(rows)


def _claims(rows: list[dict[str, Any]]) -> str:
    cells = [["2G+2M against 2G", "42%", *(percent(saved(rows, "2G", policy)) for policy in POLICIES)],
             ["2G+2M against 2M", "17%", *(percent(saved(rows, "2M", policy)) for policy in POLICIES)]]  # fmt: skip
    text = "\n## Time saved\n\n" + table(["", "the paper", *POLICIES], cells)
    text += "\n## Does another device help?\n\nThe time of minmax against the fastest set with fewer of the devices; "
    text += "below 0 the device helps. The paper's 2G+1M takes 5.2% longer than its 2M.\n\n"
    text += table(["devices", "time against the best subset"],
                  [[name, percent(gain_over_subsets(rows, name))] for name in SUBSETS])  # fmt: skip
    return text + _overheads(rows)


def _overheads(rows: list[dict[str, Any]]) -> str:
    text = (
        "\n## Overhead on one island\n\nThe whole training over Atoll against the island's library alone; "
        "paired steps are on [a page of their own](library.md), single calls on [another](devices.md).\n\n"
        "![Seconds of training on one island](kaitian-overhead.svg)\n\n"
    )
    cells = [[name, percent(overhead(rows, name)), percent(theirs)] for name, theirs in OVERHEAD.items()]
    return text + table(["devices", "Atoll", "the paper's framework"], cells)
