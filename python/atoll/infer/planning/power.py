# SPDX-License-Identifier: Apache-2.0
"""Measures this machine's power while it runs a model, by NVML, RAPL or a board's sensor if available."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll.infer.planning.watts import STATES
from atoll.profiling.power import EnergyMeter, find_meter

if TYPE_CHECKING:
    from atoll.infer.bundle import Bundle

IDLE_SECONDS = 1.0
BUSY_SECONDS = 2.0
_STEP = 0.05


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
