# SPDX-License-Identifier: Apache-2.0
"""Reports a pipeline's plan: the predicted and measured time, the bound, and the time of simpler plans."""

import logging
from collections.abc import Iterator
from statistics import median
from typing import Any

_log = logging.getLogger("atoll.plan")


def verdict(answer: dict[str, Any], measured: list[float]) -> Iterator[str]:
    """Yields lines with the predicted time of a step, its bound, the measured time, and that of devices of one kind."""
    from atoll.planning.layers_table import verdict as lines_of
    from atoll.planning.table import seconds_text

    if answer:
        yield from lines_of(answer)
    if measured:
        noun = "step" if len(measured) == 1 else f"{len(measured)} steps"
        yield f"Measured on this rank: {seconds_text(median(measured))} (median of the last {noun})"


def warn_of_one_kind(answer: dict[str, Any]) -> None:
    """Warns if devices of one kind alone are faster than the plan for all."""
    alone = answer.get("homogeneous")
    if not alone or not alone["wins"]:
        return
    from atoll.planning.table import seconds_text

    ranks = sorted(stage["rank"] for pipeline in alone["pipelines"] for stage in pipeline["stages"])
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    gain = 100 * (1 - alone["seconds"] / answer["seconds"])
    _log.warning(
        f"atoll.pipeline.Pipeline: {named} alone ({alone['kind']}) would take {seconds_text(alone['seconds'])} for a "
        f"step, {gain:.1f} % less than the {seconds_text(answer['seconds'])} of the fastest plan for all ranks. A rank "
        f"without a stage cannot be in a job, so this job uses all ranks: for the faster plan start a job with "
        f"{named} only, with replicas={len(alone['pipelines'])}"
    )
