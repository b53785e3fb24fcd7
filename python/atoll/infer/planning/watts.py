# SPDX-License-Identifier: Apache-2.0
"""A robot's power: the published three states, figures of the caller, a table of records by model, or what a meter
(NVML, RAPL or a board's sensor) measures while this machine runs the model."""

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atoll.profiling.power import EnergyMeter, find_meter

if TYPE_CHECKING:
    from atoll.infer.bundle import Bundle

STATES = {"compute_watts": 13.35, "idle_watts": 4.04, "radio_watts": 0.21}  # Intra-DP's table of power states
IDLE_SECONDS = 1.0
BUSY_SECONDS = 2.0
_STEP = 0.05
_THREE = re.compile(r"([0-9.]+)/([0-9.]+)(?:/([0-9.]+))?")
_ADVICE = "give COMPUTE/IDLE or COMPUTE/IDLE/RADIO, such as 13.35/4.04/0.21, or a CSV file of records"


def watts_of(text: str, source: str, model: str) -> tuple[dict[str, float], str]:
    """Returns the planner's watts and their source. `text` is empty, figures, or a file with the columns source, model,
    system, environment and board_W_mean. From a file, the mean over the model's records of local inference is used,
    from any source if `source` is empty."""
    if not text:
        return dict(STATES), "the published three states, not measured for this model"
    if match := _THREE.fullmatch(text):
        try:
            compute, idle, radio = (float(part) for part in (match[1], match[2], match[3] or "0.21"))
        except ValueError:
            raise ValueError(f"invalid --watts {text!r}: {_ADVICE}") from None
        return {"compute_watts": compute, "idle_watts": idle, "radio_watts": radio}, "the command line"
    known = f"{source} {model}".strip()
    found = [float(row["board_W_mean"]) for row in _rows(text) if _is_local(row, source, model)]
    if not found:
        return dict(STATES), f"the published three states: {text} has no local inference of {known or 'it'}"
    mean = sum(found) / len(found)
    return {**STATES, "compute_watts": mean}, f"records of {known} for computing"


def _is_local(row: dict[str, Any], source: str, model: str) -> bool:
    return (not source or row["source"] == source) and (row["model"], row["system"]) == (model, "Local")


def _rows(path: str) -> list[dict[str, Any]]:
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"--watts {path} cannot be read ({error}): {_ADVICE}") from None
    wanted = {"source", "model", "system", "board_W_mean"}
    if not rows or not wanted <= rows[0].keys():
        raise ValueError(f"--watts {path} lacks some of the columns {', '.join(sorted(wanted))}: {_ADVICE}")
    return rows


def measured_watts(
    bundle: "Bundle", folder: str, device: str, tell: Callable[[str], None], meter: EnergyMeter | None = None
) -> tuple[dict[str, float], str] | None:
    """Returns the watts at rest and while the model in `folder` runs repeatedly, and their source; None if there is no
    meter. The radio's watts are the published ones, because no meter measures them separately. `meter` overrides the
    one that is found."""
    from atoll.infer import graph as graphs
    from atoll.infer.dtypes import BY_NAME
    from atoll.infer.session import Session

    meter = meter or find_meter(torch.device(device))
    if meter is None:
        return None
    tell("watts at rest")
    idle = _watts(meter, IDLE_SECONDS, lambda: time.sleep(_STEP))
    likes = graphs.of_inputs(bundle.graph)
    args, kwargs = bundle.inputs.call([torch.zeros(like["shape"], dtype=BY_NAME[like["dtype"]]) for like in likes])
    kept = Path(folder).resolve().parent  # where the session finds the bundle
    with Session(bundle, device=device, policy="local", profile_seconds=0.0, cache=kept) as session:
        tell("watts of the model")
        busy = _watts(meter, BUSY_SECONDS, lambda: session.run(tuple(args), kwargs))
    watts = {**STATES, "compute_watts": max(busy, idle), "idle_watts": idle}
    return watts, f"measured on {device} by {meter.source}; the radio's are published"


def _watts(meter: EnergyMeter, seconds: float, step: Callable[[], object]) -> float:
    before, begin = meter.joules(), time.monotonic()
    while True:
        step()
        used, now = meter.joules() - before, time.monotonic()
        if now - begin >= seconds:
            return used / (now - begin)
