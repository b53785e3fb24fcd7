# SPDX-License-Identifier: Apache-2.0
"""The faults that reliability.py gives to every contender, and the names of a rank's fates."""

import re
from dataclasses import dataclass
from typing import Any

from compare import spread

RANKS = 3
VICTIM = 1
LIMIT_S = 40.0
ENTRY_LIMIT_S = 10.0  # the group's timeout where a rank never enters


@dataclass(frozen=True)
class Fault:
    """`by`: what causes the fault. "signal": `signal` is sent to the victim; "victim": its program does it; "link": its
    network fails; "store": the process that ranks meet through fails. `mpi`: whether Open MPI can be given the same
    fault."""

    name: str
    text: str
    by: str
    signal: str = ""
    rounds: int = 2
    limit_s: float = LIMIT_S
    group_timeout_s: float | None = None
    all_suffer: bool = False  # the victim is alive and must learn of the fault, too
    harmless: bool = False  # no rank must notice
    mpi: bool = True


FAULTS = [
    Fault("kill", "a rank is killed (SIGKILL)", "signal", "SIGKILL", rounds=4),
    Fault("exit", "a rank's program ends without destroying its group", "victim", rounds=4),
    Fault("stop", "a rank is stopped (SIGSTOP)", "signal", "SIGSTOP"),
    Fault("cut", "the link to a rank's host goes down", "link", mpi=False),
    Fault("half_open", "what a rank sends is lost, what is sent to it arrives", "link", mpi=False),
    Fault("never", f"a rank never enters the call; groups have a limit of {ENTRY_LIMIT_S:g} s", "victim",
          group_timeout_s=ENTRY_LIMIT_S),
    Fault("shape", "a rank calls all_reduce with another number of elements", "victim", rounds=4, all_suffer=True),
    Fault("operation", "a rank calls broadcast where the others call all_reduce", "victim", all_suffer=True),
    Fault("store", "where ranks meet is killed; then they make another group", "store", rounds=3, all_suffer=True),
    Fault("slow", "a rank takes a second for each step", "victim", limit_s=10, all_suffer=True, harmless=True),
]  # fmt: skip


def names_rank(text: str, rank: int) -> bool:
    """Returns whether an error names this rank: as rank 1, among ranks 0, 1, or as Open MPI's [[7,1],1]. The rank that
    raised it, which a message names first, does not count."""
    said = re.sub(r"\bon rank \d+", "", text, count=1)
    lists = re.findall(r"\branks? ((?:\d+(?:, | and )?)+)", said) + re.findall(r"\[\[\d+,\d+\],(\d+)\]", said)
    return any(int(number) == rank for each in lists for number in re.findall(r"\d+", each))


def fate(events: list[dict[str, Any]], at: float, ended: float | None, words: str) -> dict[str, Any]:
    """Returns what became of a rank: "error", "wrong values", "ended", "went on" or "silent". It follows from what the
    rank recorded (with times of one clock), when its process ended, and what its launcher printed."""
    told = next((event for event in events if event["event"] in ("error", "wrong") and event["at"] >= at), None)
    if told is not None:
        found = {
            "kind": "error" if told["event"] == "error" else "wrong values",
            "seconds": told["at"] - at,
            "text": told["text"],
        }
        again = next((event for event in events if event["event"] in ("recovered", "not recovered")), None)
        if again is not None:
            found["again"] = again["event"]
            found["again_s"] = again["at"] - told["at"]
            found["again_text"] = again.get("text", "")
        return found
    if ended is not None:
        return {"kind": "ended", "seconds": max(0.0, ended - at), "text": words}
    steps = [event["at"] for event in events if event["event"] == "step"]
    return {"kind": "went on" if steps and steps[-1] > at + 3 else "silent", "text": ""}


def summarise(fates: list[dict[str, Any]], victim: int) -> dict[str, Any]:
    """Summarises all rounds and ranks of one fault and contender. Times that were measured while other processes used
    the machine count only if there are no better ones."""
    kinds: dict[str, int] = {}
    for each in fates:
        kinds[each["kind"]] = kinds.get(each["kind"], 0) + 1
    told = [each for each in fates if "seconds" in each]
    quiet = [each for each in told if not each.get("busy")]
    timed = quiet or told
    of_victim = [each for each in told if each.get("rank") != victim]
    again = [each for each in fates if each.get("again") == "recovered"]
    summary: dict[str, Any] = {"kinds": kinds, "rounds": len({each.get("round") for each in fates})}
    if timed:
        summary["seconds"] = spread([each["seconds"] for each in timed])
        if not quiet:
            summary["only_busy"] = True
    if of_victim:
        summary["named"] = sum(names_rank(each["text"], victim) for each in of_victim) / len(of_victim)
        middle = sorted(of_victim, key=lambda each: float(each["seconds"]))[len(of_victim) // 2]
        summary["text"] = middle["text"]
    if any("again" in each for each in fates):
        summary["again"] = len(again) / len(fates)
        if again:
            summary["again_s"] = spread([each["again_s"] for each in again])
    return summary
