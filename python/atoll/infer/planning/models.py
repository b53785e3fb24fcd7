# SPDX-License-Identifier: Apache-2.0
"""Reads models for the planner from files: a profile that was published with Intra-DP, or our own list of operators.
Raises ValueError that names the file and the way out."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.infer.planning.watts import STATES

VERSION = 1  # of our own files
_MAX_BYTES = 64 << 20
_ADVICE = 'give a published profile (with "layers") or a measured model (with "atoll_operators")'


@dataclass(frozen=True)
class Model:
    request: dict[str, Any]  # as the planner takes it
    name: str
    source: str  # the publication, "nsdi25"; empty for our own
    input_values: int  # the number of input elements; 0 if unknown
    input_bytes: int  # on the link
    watts: dict[str, float] = field(default_factory=dict)  # as measured with the model; empty: unknown
    watts_source: str = ""


def read(path: str, input_bytes: int | None = None) -> Model:
    """Reads a model. `input_bytes` overrides the size of the inputs on the link."""
    value = json_of(path)
    if isinstance(value, dict) and "layers" in value:
        return _published(path, value, input_bytes)
    if isinstance(value, dict) and "atoll_operators" in value:
        return _ours(path, value, input_bytes)
    raise ValueError(f"{path} does not hold a model: {_ADVICE}")


def _published(path: str, value: dict[str, Any], input_bytes: int | None) -> Model:
    source = Path(path).name.partition("_")[0] if "source_repo" in value else ""
    try:
        values = math.prod(int(size) for size in value["layers"][0]["output_shapes"][0])
        sent = values * int(value["input_bytes_per_element"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its first layer is not an input ({error!r}): {_ADVICE}") from None
    request: dict[str, Any] = {"profile": value}
    if input_bytes is not None:
        request["input_bytes"] = input_bytes
    return Model(request, str(value.get("model", "")), source, values, sent if input_bytes is None else input_bytes)


def _ours(path: str, value: dict[str, Any], input_bytes: int | None) -> Model:
    if value["atoll_operators"] != VERSION:
        raise ValueError(
            f"{path} has version {value['atoll_operators']!r}, but this is {VERSION}: measure the model again"
        )
    request = {key: item for key, item in value.items() if key not in ("atoll_operators", "profiles", "watts")}
    profiles = value.get("profiles", {"server": {}})  # absent if the file was written by hand
    if not isinstance(profiles, dict) or "server" not in profiles:
        raise ValueError(
            f"{path} has times of only one machine: give atoll profile a server, or another file as --server-profile"
        )
    watts, source = watts_in(path, value.get("watts"))
    try:
        inputs = [each for each in request["operators"] if not each.get("operands")]
        if input_bytes is not None:
            if len(inputs) != 1:
                raise ValueError(f"{path} has {len(inputs)} inputs: --input-bytes is for a model with one")
            inputs[0]["bytes"] = input_bytes
        total = sum(int(each["bytes"]) for each in inputs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold a list of operators ({error!r}): docs/plan-infer.md describes the format"
        ) from None
    return Model(request, str(value.get("name", "")), "", 0, total, watts, source)


def watts_in(path: str, value: Any) -> tuple[dict[str, float], str]:
    """Returns the watts that were measured with the model, if any, and their source."""
    if value is None:
        return {}, ""
    try:
        return {name: float(value[name]) for name in STATES}, str(value["source"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its watts cannot be read ({error!r}): measure the model again") from None


def json_of(path: str, advice: str = _ADVICE) -> Any:
    """Reads a JSON file. Raises ValueError that names the file and ends with the advice."""
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder: --operators counts a bundle's operators; to plan with their times give the file that "
            "atoll profile wrote"
        )
    try:
        size = Path(path).stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"{path} has {size} bytes: give a profile of at most {_MAX_BYTES}")
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}: {advice}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): {advice}") from None
