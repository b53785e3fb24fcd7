# SPDX-License-Identifier: Apache-2.0
"""A robot's power: the published three states, figures of the caller, or a table of records by model."""

import csv
import re
from pathlib import Path
from typing import Any

STATES = {"compute_watts": 13.35, "idle_watts": 4.04, "radio_watts": 0.21}  # Intra-DP's table of power states
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
