# SPDX-License-Identifier: Apache-2.0
"""Times a bundle's operators on this machine and on a server: for the output of `atoll profile`, and for the model that
it writes for `atoll plan infer`. Raises ValueError that names the way out for what cannot be measured or read."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.infer.planning.models import VERSION, json_of, watts_in
from atoll.infer.planning.watts import STATES, measured_watts, watts_of

if TYPE_CHECKING:
    from atoll.infer.bundle import Bundle

SCHEMA = 1
Tell = Callable[[str, float | None], None]  # the current activity, and the share of it that is done; None: unknown
_ADVICE = "give a file that atoll profile wrote"


@dataclass
class Wanted:
    """The request of `atoll profile`. Profiles that are given are not measured."""

    bundle: str
    device: str = "cpu"
    server: str = ""
    key_file: str = ""
    local_profile: str = ""
    server_profile: str = ""
    repeat: int = 5
    wait: float = 600.0
    watts: str = ""
    name: str = ""


@dataclass
class Measured:
    document: dict[str, Any]  # for people and programs
    model: dict[str, Any]  # as `atoll plan infer` reads it


def measure(wanted: Wanted, tell: Tell = lambda _text, _share: None) -> Measured:
    """Times the operators and reports progress to `tell`. An exception from `tell` ends the measurement."""
    from atoll import _C
    from atoll.infer import graph as graphs
    from atoll.infer.bundle import Bundle
    from atoll.infer.errors import BundleError
    from atoll.infer.session import checked_key

    if wanted.server and wanted.server_profile:
        raise ValueError("--server measures what --server-profile provides: remove one of them")
    if wanted.server:
        if not wanted.key_file:
            raise ValueError("--server needs --key-file, the file that `atoll serve --key-file` uses")
        checked_key(wanted.key_file)
    given = watts_of(wanted.watts, "", wanted.name) if wanted.watts else None
    try:
        bundle = Bundle.load(wanted.bundle)
    except BundleError as error:
        raise ValueError(str(error)) from None
    profiles: dict[str, Any] = {"local": _local(wanted, bundle, tell)}
    server = _server(wanted, bundle, tell)
    if server is not None:
        profiles["server"] = server
    text = graphs.to_text(bundle.graph).decode()
    texts = [json.dumps(profiles[whose]) if whose in profiles else "" for whose in ("local", "server")]
    try:
        lowered = json.loads(_C.infer_profiled_operators(text, *texts))
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    watts, source = given or _watts(wanted, bundle, tell)
    name = wanted.name or bundle.hash[:16]
    model: dict[str, Any] = {
        "atoll_operators": VERSION, "name": name, "operators": lowered["operators"], "outputs": lowered["outputs"],
        "profiles": profiles,
    }  # fmt: skip
    if watts is not None:
        model["watts"] = {**watts, "source": source}
    document = {
        "schema": SCHEMA, "file": wanted.bundle, "bundle": bundle.hash, "name": name,
        "inputs": bundle.inputs.names(), **_facts(profiles, bundle), "rows": list(_rows(profiles, lowered)),
        "watts": watts or dict(STATES), "watts_source": source,
    }  # fmt: skip
    return Measured(document, model)


def read_profile(path: str, bundle_hash: str) -> dict[str, Any]:
    """Returns the profile of this bundle on the machine on which `atoll profile` wrote the file."""
    from atoll import _C

    value = json_of(path, _ADVICE)
    if isinstance(value, dict) and "profiles" in value:
        value = value["profiles"].get("local") if isinstance(value["profiles"], dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a profile: {_ADVICE}")
    try:
        profile: dict[str, Any] = json.loads(_C.check_infer_profile(json.dumps(value)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if profile["model"] and profile["model"] != bundle_hash:
        raise ValueError(
            f"{path} is of the bundle {profile['model'][:16]}, but this is {bundle_hash[:16]}: measure this one there"
        )
    return profile


def _local(wanted: Wanted, bundle: "Bundle", tell: Tell) -> dict[str, Any]:
    from atoll import _C

    if wanted.local_profile:
        return read_profile(wanted.local_profile, bundle.hash)
    tell("loading the model", None)

    def progress(done: int, of: int) -> None:
        tell(f"timing operators on {wanted.device}", done / of if of else None)

    try:
        text = _C.infer_profile(wanted.bundle, wanted.device, wanted.repeat, progress)
    except RuntimeError as error:
        raise ValueError(f"--device {wanted.device}: {error}") from None
    profile: dict[str, Any] = json.loads(text)
    return profile


def _server(wanted: Wanted, bundle: "Bundle", tell: Tell) -> dict[str, Any] | None:
    from atoll import _C

    if wanted.server_profile:
        return read_profile(wanted.server_profile, bundle.hash)
    if not wanted.server:
        return None
    try:
        text = _C.infer_server_profile(
            wanted.bundle, wanted.server, wanted.key_file, wanted.wait, lambda state: tell(f"server: {state}", None)
        )
    except RuntimeError as error:
        raise ValueError(f"--server {wanted.server}: {error}") from None
    profile: dict[str, Any] = json.loads(text)
    return profile


def _watts(wanted: Wanted, bundle: "Bundle", tell: Tell) -> tuple[dict[str, float] | None, str]:
    """Returns the watts and their source. The watts are None if there is no readable meter."""
    if wanted.local_profile:
        value = json_of(wanted.local_profile, _ADVICE)
        watts, source = watts_in(wanted.local_profile, value.get("watts"))
        if watts:
            return watts, source
    else:
        if (found := measured_watts(bundle, wanted.bundle, wanted.device, lambda text: tell(text, None))) is not None:
            return found
    return None, watts_of("", "", "")[1]


def _facts(profiles: dict[str, Any], bundle: "Bundle") -> dict[str, Any]:
    local = profiles["local"]
    divided = None
    if local["input"] in bundle.graph["inputs"] and local["dim"] >= 0:
        place = bundle.graph["inputs"].index(local["input"])
        divided = {"input": bundle.inputs.names()[place], "dim": local["dim"]}
    sides = {
        whose: {"device": profile["device"], "runner": profile["runner"], "seconds": seconds_of(profile)}
        for whose, profile in profiles.items()
    }
    return {"divided": divided, "local": sides["local"], "server": sides.get("server")}


def seconds_of(profile: dict[str, Any]) -> float:
    """Returns the seconds of the whole model: of one run if that was measured, otherwise the sum over all nodes."""
    return float(profile["total"]) or sum(float(whole) for _, _, whole in profile["nodes"])


def _rows(profiles: dict[str, Any], lowered: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sums = sum(float(whole) for _, _, whole in profiles["local"]["nodes"])
    # For a node that makes a state and then a result from it, the result is shown.
    shown = dict(zip(lowered["nodes"], lowered["operators"], strict=True))
    for node, operator in shown.items():
        times = {whose: float(profile["nodes"][node][2]) if node >= 0 else 0.0 for whose, profile in profiles.items()}
        yield {
            "node": node, "name": operator["name"], "rows": operator["rows"], "bytes": operator["bytes"],
            "local": times["local"], "server": times.get("server"), "share": times["local"] / sums if sums else 0.0,
        }  # fmt: skip
