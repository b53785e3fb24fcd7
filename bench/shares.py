# SPDX-License-Identifier: Apache-2.0
"""KAITIAN's figure 3: the step time of one fast and one slow device against the share of the fast one, and the share
that each policy chooses. The same for two devices that differ by operator, each of them faster at some."""

from typing import Any

import plots
import uneven
from contenders import TorchRanks
from results import Settings, say, table

TITLE = "step time by share, and where policies end"
RATIOS = (1.4, 2.0, 4.0, 8.0)
SHARES = tuple(share / 10 for share in range(1, 10))
POLICIES = ("equal", "kaitian", "kaitian-iterative", "balancenet-eq5", "minmax")
FAST = 0.3
UNLIKE = "gpu and npu"


def measure(settings: Settings) -> dict[str, Any]:
    run = uneven.Run(
        "mobilenet", {"width": 0.1 if settings.quick else 0.25}, batch=8 if settings.quick else 128,
        steps=2 if settings.quick else 7, warm_up=1 if settings.quick else 2,
    )  # fmt: skip
    fast = FAST * (10 if settings.quick else 1)
    parts = []
    for ratio in RATIOS[1:2] if settings.quick else RATIOS:
        devices = [uneven.Device("fast", fast), uneven.Device("slow", fast / ratio)]
        parts.append({"ratio": ratio, **_measure(f"ratio {ratio:g}", devices, run, settings)})
    devices = [uneven.Device("fast", fast, "gpu"), uneven.Device("slow", fast, "npu")]
    unlike = _measure(UNLIKE, devices, run, settings)
    settings.output.mkdir(parents=True, exist_ok=True)
    for part in parts:
        title = f"Step time, one device {part['ratio']:g} times as fast as the other"
        (settings.output / f"shares-{part['ratio']:g}.svg").write_text(_plot(part, title))
    (settings.output / "shares-unlike.svg").write_text(_plot(unlike, f"Step time, {UNLIKE}"))
    return {"parts": parts, "unlike": unlike, "batch": run.batch, "steps": run.steps, "width": run.options["width"]}


def _measure(name: str, devices: list[uneven.Device], run: uneven.Run, settings: Settings) -> dict[str, Any]:
    part: dict[str, Any] = {"sweep": [], "policies": []}
    with TorchRanks(uneven.places(devices), ["atoll"]) as ranks:
        for share in SHARES[2:7:2] if settings.quick else SHARES:
            wanted = {"policy": "fixed", "shares": [share, 1 - share]}
            part["sweep"].append({"share": share, **uneven.train(ranks, uneven.Run(**{**vars(run), **wanted}))})
        for policy in POLICIES:
            row = uneven.train(ranks, uneven.Run(**{**vars(run), "policy": policy}))
            part["policies"].append({"share": row["batches"][0] / sum(row["batches"]), **row})
            say(f"{name}, {policy}: {uneven.batches_text(row)}, step {row['step']['median'] * 1e3:.1f} ms")
    return part


def over_sweep(part: dict[str, Any], policy: str) -> float | None:
    """Returns the step time of a policy divided by the shortest of the sweep."""
    sweep = uneven.counted(part["sweep"])
    rows = [row for row in uneven.counted(part["policies"]) if row["policy"] == policy]
    if not rows or len(sweep) < len(part["sweep"]):
        return None
    return float(rows[0]["step"]["median"] / min(row["step"]["median"] for row in sweep))


def _plot(part: dict[str, Any], title: str) -> str:
    def points(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
        return [(100 * row["share"], row["step"]["median"] * 1e3) for row in uneven.counted(rows)]

    sweep = points(part["sweep"])
    marks = {row["policy"]: points([row]) for row in uneven.counted(part["policies"])}
    return plots.lines(title, "share of the fast device in percent", "ms", {"fixed shares": sweep}, marks)


def report(document: dict[str, Any]) -> str:
    text = (
        f"One fast and one slow device, MobileNetV2 at {document['width']} of its width on digits at 3 x 32 x 32, "
        f"global batch {document['batch']}. Fixed shares of the fast device from 10 to 90 %, then every policy, each "
        f"a training of {document['steps']} steps: medians of the slowest rank. {uneven.MODELLED}\n"
    )
    for part in document["parts"]:
        name = f"{part['ratio']:g}"
        text += f"\n## {name} : 1\n\n![Step time by share at {name} : 1](shares-{name}.svg)\n\n{_table(part)}"
    if "unlike" in document:
        text += (
            f"\n## {UNLIKE}\n\nDevices of these [kinds](../simulated-device.md#time), at one speed: they differ by "
            "operator, their times jitter and do not grow in proportion to the batch.\n\n"
            f"![Step time by share of a gpu beside an npu](shares-unlike.svg)\n\n{_table(document['unlike'])}"
        )
    return text


def _table(part: dict[str, Any]) -> str:
    cells = []
    for row in part["sweep"]:
        step = uneven.figure(row, uneven.milliseconds(row["step"]))
        cells.append([f"{row['share']:.0%}", uneven.batches_text(row), step, ""])
    for row in part["policies"]:
        over = over_sweep(part, row["policy"])
        cells.append([row["policy"], uneven.batches_text(row),
                      uneven.figure(row, uneven.milliseconds(row["step"])),
                      "" if over is None else f"{over:.3f}"])  # fmt: skip
    return table(["share or policy", "batches", "step ms, 10 to 90 %", "by the best of the sweep"], cells)
