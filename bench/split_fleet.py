# SPDX-License-Identifier: Apache-2.0
"""Several robots with published profiles on one server and one radio: everyone's own best, sessions that see the
server's load, one plan for all, and the bound. Simulated, no inference is run."""

import json
import subprocess
from pathlib import Path
from typing import Any

import peers
from results import ROOT, Settings, say, table

TITLE = "several robots on one server and one radio, simulated"
SIMULATED = "published profiles of a robot and a server"  # a busy machine makes no difference
PROFILES = ROOT / "tests" / "data" / "intradp" / "profiles"
# Inputs as bytes per pixel and channel, as the authors send them, and as bits per voxel.
MODELS = {"VGG19": ("nsdi25_VGG19_BN", 1), "kapao": ("nsdi25_kapao", None), "AGRNav": ("nsdi25_agrnav", 1 / 8)}
RATES = (45, 73, 93)  # decimal Mbit/s: the median of the outdoors record, and the papers' two means
ROBOTS = (2, 4, 8)
LATENCY = 0.002
SEARCH_SECONDS = 2.0
SHOWN = ("local", "selfish", "distributed", "aware")


def measure(settings: Settings) -> dict[str, Any]:
    program = built()
    names = list(MODELS)[:1] if settings.quick else list(MODELS)
    rows = []
    for name in names:
        for rate in RATES[:1] if settings.quick else RATES:
            for count in ROBOTS[:2] if settings.quick else ROBOTS:
                rows.append(row_of(program, [(name, count)], rate))
    if not settings.quick:
        rows += [row_of(program, [(name, each) for name in MODELS], rate) for rate in RATES for each in (1, 2)]
    return {"simulated": SIMULATED, "rows": rows, "latency": LATENCY}


def built() -> Path:
    """Returns the program that plans for several robots, built if necessary."""
    return peers.cxx_program("plan_fleet")


def planned(program: Path, robots: list[dict[str, Any]], seconds: float = SEARCH_SECONDS) -> dict[str, Any]:
    """Returns the program's answer. docs/planning.md describes it."""
    request = json.dumps({"robots": robots, "search_seconds": seconds})
    done = subprocess.run([program], input=request, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row_of(program: Path, fleet: list[tuple[str, int]], rate: float) -> dict[str, Any]:
    """Simulates all policies for the robots of `fleet`, a number for each model. A robot that is alone has `rate`
    Mbit/s."""
    answer = planned(program, [robots_of(name, count, rate) for name, count in fleet])
    policies = {each.pop("policy"): each for each in answer["policies"]}
    row = {"models": [f"{count} {name}" for name, count in fleet], "robots": sum(count for _, count in fleet),
           "mbps": rate, "bound": answer["bound"], "policies": policies}  # fmt: skip
    say(f"{', '.join(row['models'])} at {rate} Mbit/s: {policies['aware']['seconds'] * 1e3:.0f} ms")
    return row


def robots_of(name: str, count: int, rate: float) -> dict[str, Any]:
    profile, bytes_per_value = MODELS[name]
    text = (PROFILES / f"{profile}.json").read_text()
    link = {"up": rate * 1e6 / 8, "latency": LATENCY, "half_duplex": True}
    robots: dict[str, Any] = {"profile": text, "link": link, "count": count}
    if bytes_per_value is not None:
        values = 1
        for size in json.loads(text)["layers"][0]["output_shapes"][0]:
            values *= size
        robots["input_bytes"] = int(values * bytes_per_value)
    return robots


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """Returns of each robot only the kind of its plan, and no sums by round."""
    rows = [{**row, "policies": {name: _kinds(each) for name, each in row["policies"].items()}}
            for row in document["rows"]]  # fmt: skip
    return {"rows": rows, "latency": document["latency"]}


def _kinds(policy: dict[str, Any]) -> dict[str, Any]:
    sums = {key: value for key, value in policy.items() if key != "rounds"}
    return {**sums, "robots": [{"kind": robot["kind"]} for robot in policy["robots"]]}


def over_selfish(row: dict[str, Any], policy: str) -> float:
    """Returns the time that the policy saves, as a share of the selfish policy's."""
    return 1 - float(row["policies"][policy]["seconds"] / row["policies"]["selfish"]["seconds"])


def users(row: dict[str, Any], policy: str) -> int:
    """Returns the number of robots that use the server."""
    return sum(robot["kind"] != "local" for robot in row["policies"][policy]["robots"])


def report(document: dict[str, Any]) -> str:
    text = (
        "Robots infer back to back. All share one radio, both directions and all robots one medium with equal parts "
        "of the time, and a server that computes for one at a time. Each rate is what a robot has when it is alone; "
        f"messages take {document['latency'] * 1e3:g} ms more. **selfish**: each robot's best plan as if it were "
        "alone. **distributed**: sessions that change their plans by what the server tells of its load. **aware**: one "
        "plan for all; the optimum, where all choices of the robots' plans were simulated. The sums are over robots: "
        "of their mean milliseconds, which no plans undercut below the **bound** in the long run, and of their joules "
        "for an inference; in brackets, how many use the server. Profiles have no halos.\n\n"
    )
    titles = ["robots", "Mbit/s", *(f"{name}, ms" for name in SHOWN), "bound, ms", "aware saves",
              *(f"{name}, J" for name in SHOWN)]  # fmt: skip
    return text + table(titles, [_cells(row) for row in document["rows"]])


def _cells(row: dict[str, Any]) -> list[str]:
    policies = row["policies"]
    times = [f"{policies[name]['seconds'] * 1e3:.0f} ({users(row, name)})" for name in SHOWN]
    optimum = "" if not policies["aware"]["is_optimum"] else ", optimum"
    times[-1] += optimum
    joules = [f"{policies[name]['joules']:.1f}" for name in SHOWN]
    return [", ".join(row["models"]), f"{row['mbps']:g}", *times, f"{row['bound'] * 1e3:.0f}",
            f"{over_selfish(row, 'aware'):.0%}", *joules]  # fmt: skip
