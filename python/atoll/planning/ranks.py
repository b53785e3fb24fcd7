# SPDX-License-Identifier: Apache-2.0
"""Reads ranks for the planner from a file, from saved profiles or from short forms. Raises ValueError that names the
rank and what to write instead."""

import re
from typing import Any

from atoll.planning.files import read_json

Rank = dict[str, Any]  # in the planner's format

SHORT_FORM = "NAME:cost=FIXED+PER_SAMPLEb,KEY=VALUE,..."
_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_AFFINE = re.compile(rf"(?:({_NUMBER})\+)?({_NUMBER})b")
_POINT = re.compile(rf"({_NUMBER}):({_NUMBER})")
_WATTS = re.compile(rf"({_NUMBER})/({_NUMBER})")
_COST_ADVICE = "give seconds as FIXED+PER_SAMPLEb, such as 0.002+0.0005b, or as BATCH:SECONDS/BATCH:SECONDS/..."
_WHOLE = ("least", "most", "quantum")
_AMOUNTS = {"ops": "ops", "memory": "memory_used", "latency": "latency"}
_KEYS = ("cost", "knee", "step", *_WHOLE, "watts", *_AMOUNTS, "count")


def from_text(text: str, place: int) -> list[Rank]:
    """Parses one rank in short form, or `count` equal ranks; the first is rank `place`.

    NAME:cost=COST,...: COST is seconds by batch b, FIXED+PER_SAMPLEb or measured BATCH:SECONDS/BATCH:SECONDS/... Other
    keys: knee (samples that fill the device) or step (samples of a micro-batch, FIXED seconds for each); least, most,
    quantum; watts=BUSY/IDLE; ops, memory, latency (BalanceNet's metrics); count."""
    head, has_value, _ = text.partition("=")
    name, has_name, _ = head.rpartition(":")
    if not has_value or not has_name or not name:
        raise ValueError(f"rank {place}: {text!r} has no name or no cost: give {SHORT_FORM}")
    return _Short(f"rank {place} ({name})", name, text[len(name) + 1 :]).ranks()


class _Short:
    def __init__(self, who: str, name: str, text: str) -> None:
        self._who, self._name = who, name
        self._values: dict[str, str] = {}
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if key not in _KEYS or not equals:
                raise self._wrong(f"unknown key {part!r}", f"choose from {', '.join(_KEYS)}, each with =VALUE")
            if key in self._values:
                raise self._wrong(f"{key} comes twice", "give it once")
            self._values[key] = value

    def ranks(self) -> list[Rank]:
        rank: Rank = {"name": self._name, "cost": self._cost()}
        for key in _WHOLE:
            if key in self._values:
                rank[key] = self._whole(key)
        for key, planner_key in _AMOUNTS.items():
            if key in self._values:
                rank[planner_key] = self._number(key)
        if "watts" in self._values:
            if (match := _WATTS.fullmatch(self._values["watts"])) is None:
                raise self._wrong(f"watts {self._values['watts']!r}", "give BUSY/IDLE, such as 300/60")
            rank["busy_watts"], rank["idle_watts"] = float(match[1]), float(match[2])
        if "count" not in self._values:
            return [rank]
        count = self._whole("count")
        if count < 1:
            raise self._wrong(f"count {count}", "give 1 or more")
        return [{**rank, "name": f"{self._name} {index}"} for index in range(count)]

    def _cost(self) -> Rank:
        text = self._values.get("cost")
        if text is None:
            raise self._wrong("it has no cost", _COST_ADVICE)
        shapes = [key for key in ("knee", "step") if key in self._values]
        points = [_POINT.fullmatch(part) for part in text.split("/")]
        if len(shapes) > (0 if all(points) else 1):
            raise self._wrong(
                f"incompatible with this cost: {', '.join(shapes)}", "give at most one, and none with points"
            )
        if all(points):
            return {"shape": "table", "points": [[float(match[1]), float(match[2])] for match in points if match]}
        if (match := _AFFINE.fullmatch(text)) is None:
            raise self._wrong(f"cost {text!r}", _COST_ADVICE)
        fixed, per_sample = float(match[1] or 0), float(match[2])
        if shapes == ["knee"]:
            return {"shape": "saturating", "fixed": fixed, "per_sample": per_sample, "knee": self._number("knee")}
        if shapes == ["step"]:
            step = self._whole("step")
            return {"shape": "staircase", "step": step, "per_launch": fixed, "per_sample": per_sample}
        return {"shape": "affine", "fixed": fixed, "per_sample": per_sample}

    def _whole(self, key: str) -> int:
        if not self._values[key].isdecimal():
            raise self._wrong(f"{key} {self._values[key]!r}", "give an integer")
        return int(self._values[key])

    def _number(self, key: str) -> float:
        if re.fullmatch(_NUMBER, self._values[key]) is None:
            raise self._wrong(f"{key} {self._values[key]!r}", "give a number of at least 0")
        return float(self._values[key])

    def _wrong(self, problem: str, advice: str) -> ValueError:
        return ValueError(f"{self._who}: {problem}: {advice}")


def from_file(path: str) -> list[Rank]:
    """Reads a JSON list of rank objects in the planner's format."""
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path} does not hold a list of ranks: give a JSON list with an object for each rank")
    return value


def from_profile(path: str, place: int) -> Rank:
    """Reads a measured device profile, as the loader would plan it."""
    from atoll.loading.facts import RankFacts
    from atoll.profiling.device import DeviceProfile

    value = read_json(path)
    try:
        device = value["device"]
        return RankFacts(device, profile=DeviceProfile.from_json(value)).as_planned(least=1, quantum=1)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"rank {place}: {path} does not hold a device profile ({error}): give a file from the folder profiles "
            "in Atoll's cache"
        ) from None
