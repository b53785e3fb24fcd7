# SPDX-License-Identifier: Apache-2.0
"""Kinds of simulated devices: the time of each operator, in tables (*.toml) beside this file or of the user.

A table has `launch_us`, `jitter` and `pageable`; optionally `[warm]` with `after_s` and `speed`; and one `[work.NAME]`
for each kind of work: its `operators`, and their rates. `[work.other]` applies to all operators that are not named."""

import os
import tomllib
from pathlib import Path
from typing import Any

USUAL = "gpu"
_FOLDER = Path(__file__).parent
_RATES = ("gflops", "gb_per_s", "full_us")
Rates = tuple[float, float, float]  # flop/s, bytes/s, seconds


def named_kinds() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def chosen() -> dict[str, Any]:
    """Returns the arguments of `_sim.set_kind` for ATOLL_SIM_MODEL, a name or a table's path. Raises ValueError for
    other values."""
    wanted = os.environ.get("ATOLL_SIM_MODEL") or USUAL
    path = _FOLDER / f"{wanted}.toml" if wanted in named_kinds() else Path(wanted)
    if path.suffix != ".toml" or not path.is_file():
        names = ", ".join(named_kinds())
        raise ValueError(
            f'ATOLL_SIM_MODEL is "{wanted}": give {names}, or the path of a table like {_FOLDER / USUAL}.toml'
        )
    try:
        return arguments_of(tomllib.loads(path.read_text()))
    except (ValueError, OSError) as error:  # tomllib raises ValueErrors
        raise ValueError(f"ATOLL_SIM_MODEL, {path}: {error}") from None


def arguments_of(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `_sim.set_kind`. Raises ValueError that names the field."""
    _refuse_others(table, ("launch_us", "jitter", "pageable", "warm", "work"), "")
    warm, work = _part(table, "warm"), _part(table, "work")
    _refuse_others(warm, ("after_s", "speed"), "warm.")
    if "other" not in work:
        raise ValueError("[work.other] is missing: it holds the rates of operators that are not named")
    operators: dict[str, Rates] = {}
    for name in work:
        row = _part(work, name)
        _refuse_others(row, ("operators", *_RATES), f"work.{name}.")
        given = row.get("operators", [])
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise ValueError(f'work.{name}.operators must be a list of names like "addmm"')
        for each in given:
            if each in operators:
                raise ValueError(f"work.{name}.operators: {each} is in another list too")
            operators[each] = _rates(row, name)
    return {
        "usual": _rates(_part(work, "other"), "other"),
        "operators": operators,
        "launch_s": _number(table, "launch_us", "", 0.0, 1e6) * 1e-6,
        "jitter": _number(table, "jitter", "", 0.0, 1.0),
        "pageable": _number(table, "pageable", "", 0.001, 1.0),
        "warm_after_s": _number(warm, "after_s", "warm.", 0.001, 1e6) if warm else 0.0,
        "warm_speed": _number(warm, "speed", "warm.", 0.01, 1.0) if warm else 1.0,
    }


def _rates(row: dict[str, Any], name: str) -> Rates:
    gflops, gb_per_s, full_us = (
        _number(row, field, f"work.{name}.", 0.0 if field == "full_us" else 1e-6, 1e9) for field in _RATES
    )
    return gflops * 1e9, gb_per_s * 1e9, full_us * 1e-6


def _part(table: dict[str, Any], name: str) -> dict[str, Any]:
    part = table.get(name, {})
    if not isinstance(part, dict):
        raise ValueError(f"{name} must be a table")
    return part


def _refuse_others(table: dict[str, Any], known: tuple[str, ...], of: str) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f"{of}{name} is unknown: give {', '.join(known)}")


def _number(table: dict[str, Any], name: str, of: str, low: float, high: float) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{of}{name} is {value!r}: it must be a number from {low:g} to {high:g}")
    return float(value)
