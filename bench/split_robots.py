# SPDX-License-Identifier: Apache-2.0
"""Several robots with real sessions on one server and one radio: everything local, each robot's best plan as if it were
alone, sessions that adapt to what they measure, and plans made for all robots together.

Sessions learn how much others use the server, and `auto` takes the wait into account. They know nothing of each other's
plans, so the plans for all robots come from the fleet's planner, and each session gets its own as a policy. A plan that
divides rows cannot be given as a policy: such a robot streams, and is counted. A session's own cut may differ from the
planner's, because it is the best one for the rate that the session knows when it connects."""

import json
from pathlib import Path
from typing import Any

import split_fleet
from results import Settings, say, table
from split_stage import Programs, Robot, Stage, built, row_of

TITLE = "several robots on one server and one radio, real sessions"
MODELS = split_fleet.MODELS
ROBOTS = (2, 4, 8)
RATE = 73  # decimal Mbit/s, the papers' mean outdoors
MIN_SECONDS, FRAMES = 8.0, 20.0  # of a measurement; FRAMES: inferences of the robot alone
WAYS = ("local", "selfish", "auto", "aware")
PATIENT = {"hedge": "never", "patience": 120.0, "silence": 120.0}
WATTS = {"compute_watts": 13.35, "idle_watts": 4.04, "radio_watts": 0.21}  # the same as the planner's
SESSIONS_PLANS = ("local", "offload", "stream", "cut")  # the plans that a session accepts as policies


def measure(settings: Settings) -> dict[str, Any]:
    programs, planner = built(), split_fleet.built()
    names = list(MODELS)[:1] if settings.quick else list(MODELS)
    counts = ROBOTS[:1] if settings.quick else ROBOTS
    seconds = 2.0 if settings.quick else None
    rows = [fleet(programs, planner, name, count, seconds) for name in names for count in counts]
    return {"rows": rows, "mbps": RATE, "latency": split_fleet.LATENCY}


def fleet(programs: Programs, planner: Path, name: str, count: int, seconds: float | None = None) -> dict[str, Any]:
    """Measures all ways for `count` robots of one model, one way after the other."""
    robots = split_fleet.robots_of(name, count, RATE)
    answer = split_fleet.planned(planner, [robots])
    planned = {each["policy"]: each for each in answer["policies"]}
    path = split_fleet.PROFILES / f"{MODELS[name][0]}.json"
    alone = float(json.loads(path.read_text())["robot_sum_ms"]) / 1e3
    task = task_of(path, robots, seconds or max(MIN_SECONDS, FRAMES * alone))
    row: dict[str, Any] = {"model": name, "robots": count, "bound": answer["bound"], "ways": {}}
    link = {"rate": robots["link"]["up"], "latency": split_fleet.LATENCY, "half_duplex": True}
    for way in WAYS:
        kinds = kinds_of(planned.get(way), count)
        with Stage(programs, [link]) as stage:
            found = stage.run([(0, {**task, "policy": kind if kind in (*SESSIONS_PLANS, "auto") else "stream"})
                               for kind in kinds])  # fmt: skip
        row["ways"][way] = together(found, kinds, planned.get(way))
    times = (f"{way} {1e3 * each['seconds']:.0f}" for way, each in row["ways"].items())
    say(f"{count} {name}: {', '.join(times)} ms")
    return row


def task_of(path: Path, robots: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Returns a task of inferences back to back."""
    task = {"profile": str(path), "watts": WATTS, "link": robots["link"], "seconds": seconds, "warm_up": 1, **PATIENT}
    return task | ({"input_bytes": robots["input_bytes"]} if "input_bytes" in robots else {})


def kinds_of(planned: dict[str, Any] | None, count: int) -> list[str]:
    """Returns the kind of each robot's plan; sessions without a planned one choose for themselves."""
    return [robot["kind"] for robot in planned["robots"]] if planned else ["auto"] * count


def together(found: list[Robot], kinds: list[str], planned: dict[str, Any] | None) -> dict[str, Any]:
    """Returns sums over the robots of their means, as in the planner's results."""
    rows = [row_of(robot) for robot in found]
    plans: dict[str, int] = {}
    for row in rows:
        for plan, frames in row["plans"].items():
            plans[plan] = plans.get(plan, 0) + frames
    return {
        "seconds": sum(row["seconds"].get("mean", 0.0) for row in rows),
        "p95": max(row["seconds"].get("p95", 0.0) for row in rows),
        "joules": sum(row["joules"].get("mean", 0.0) for row in rows),
        "frames": sum(row["inferences"] for row in rows), "plans": plans, "kinds": kinds,
        "handed_over": all(kind in (*SESSIONS_PLANS, "auto") for kind in kinds),
        "predicted_seconds": planned["seconds"] if planned else None,
        "predicted_joules": planned["joules"] if planned else None,
    }  # fmt: skip


def report(document: dict[str, Any]) -> str:
    text = (
        f"**Real sessions over one relay and one server; modelled devices.** All robots infer back to back over one "
        f"half-duplex radio of {document['mbps']:g} Mbit/s, whose messages take {document['latency'] * 1e3:g} ms more, "
        "and a server that computes for one at a time; every byte of every answer is compared. **selfish**: each "
        "session has the plan that is best for a robot that is alone. **auto**: sessions choose by what they measure "
        "of the link, which feels the others, and by the wait that the server tells of. **aware**: one plan for all, "
        "handed to each session as its policy; where it divides rows, which a policy cannot say, that robot "
        "streams (marked *). The sums are over robots: of their mean milliseconds and of their mean joules for an "
        "inference; in brackets what the planner predicts, which knows no software.\n\n"
    )
    titles = ["robots", *(f"{way}, ms" for way in WAYS), "bound, ms", "aware saves", *(f"{way}, J" for way in WAYS),
              "aware's plans"]  # fmt: skip
    return text + table(titles, [_cells(row) for row in document["rows"]])


def _cells(row: dict[str, Any]) -> list[str]:
    ways = [row["ways"][way] for way in WAYS]
    saved = 1 - row["ways"]["aware"]["seconds"] / row["ways"]["selfish"]["seconds"]
    times = [f"{each['seconds'] * 1e3:.0f}{_predicted(each['predicted_seconds'], 1e3)}{_mark(each)}" for each in ways]
    joules = [f"{each['joules']:.1f}{_predicted(each['predicted_joules'], 1)}" for each in ways]
    kinds = row["ways"]["aware"]["kinds"]
    plans = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return [f"{row['robots']} {row['model']}", *times, f"{row['bound'] * 1e3:.0f}", f"{saved:.0%}", *joules, plans]


def _predicted(value: float | None, scale: float) -> str:
    return "" if value is None else f" ({scale * value:.0f})" if scale > 1 else f" ({value:.1f})"


def _mark(way: dict[str, Any]) -> str:
    return "" if way["handed_over"] else " *"
