# SPDX-License-Identifier: Apache-2.0
"""The same faults for Atoll, Gloo and Open MPI: when the surviving ranks learn of a fault, what their errors say, and
whether they can go on."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import reliability_ways
from netns import ShapedLink
from reliability_faults import FAULTS, LIMIT_S, RANKS, VICTIM, Fault, summarise
from reliability_trials import QUIET_S, SHORT_S, Job, MpiJob, Quiet, TorchJob, quiet_trial, trial
from results import Settings, say, table

QUIET_STARTS = True  # trials themselves wait until the machine is quiet
TITLE = "the same faults for Atoll, Gloo and Open MPI"
QUICK_LIMIT_S = 3.0
QUICK = ("kill", "shape")
NAMES = {"atoll": "Atoll", "gloo": "Gloo", "ompi4": "Open MPI 4.1", "ompi5": "Open MPI 5.0",
         "ompi5_ulfm": "Open MPI 5.0, ULFM"}  # fmt: skip
SHOWN = 230  # characters of a message

Make = Callable[[Fault, Path, ShapedLink | None], Job]


def contenders(settings: Settings) -> tuple[dict[str, Make], dict[str, str]]:
    """Returns the contenders that take part, by name, and why others do not."""
    found: dict[str, Make] = {}
    for backend in settings.backends:
        found[backend] = lambda fault, folder, link, backend=backend: TorchJob(backend, fault, folder, link)
    left_out: dict[str, str] = {}
    for name, get in (("ompi4", peers.open_mpi_4), ("ompi5", peers.open_mpi_5)):
        try:
            mpi = get()
        except (RuntimeError, OSError) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        _add_mpi(found, left_out, name, mpi, [], "abort")
        if name == "ompi5":
            _add_mpi(found, left_out, "ompi5_ulfm", mpi, ["--with-ft", "ulfm"], "return")
    for name, why in left_out.items():
        say(f"{name}: left out ({why})")
    return found, left_out


def _add_mpi(found: dict[str, Make], left_out: dict[str, str], name: str, mpi: peers.OpenMpi, options: list[str],
             how: str) -> None:  # fmt: skip
    """Adds Open MPI if it starts here."""

    def make(fault: Fault, folder: Path, _link: ShapedLink | None) -> Job:
        return MpiJob(mpi, options, how, fault, folder)

    try:
        trial(make, FAULTS[0], QUICK_LIMIT_S)
    except (RuntimeError, OSError) as error:
        left_out[name] = str(error).splitlines()[0][:300]
    else:
        found[name] = make


def measure(settings: Settings) -> dict[str, Any]:
    makers, left_out = contenders(settings)
    quiet = Quiet(0 if settings.quick or settings.force_busy else QUIET_S)
    rows = []
    for fault in FAULTS:
        if settings.quick and fault.name not in QUICK:
            continue
        if fault.by == "link" and os.geteuid() != 0:
            raise RuntimeError(f"{fault.name}: network namespaces need root: run this scenario as root")
        chosen = {name: make for name, make in makers.items() if fault.mpi or not name.startswith("ompi")}
        fates: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
        limit_s = QUICK_LIMIT_S if settings.quick else fault.limit_s
        for number in range(settings.rounds(fault.rounds)):
            for name, make in chosen.items():
                if number and all(each["kind"] == "silent" for each in fates[name]):
                    continue
                fates[name] += [{"round": number, **each} for each in quiet_trial(quiet, make, fault, limit_s)]
        found = {name: summarise(each, VICTIM) for name, each in fates.items()}
        rows.append({"fault": fault.name, "text": fault.text, "harmless": fault.harmless, "limit_s": limit_s,
                     "rounds": settings.rounds(fault.rounds), "found": found, "fates": fates})  # fmt: skip
        for name, summary in found.items():
            say(f"{fault.name}, {name}: {time_text(summary, limit_s)}; {kinds_text(summary)}")
    back = reliability_ways.measure(settings, quiet)
    told = [summary for row in rows for summary in row["found"].values() if "seconds" in summary]
    short = [summary for summary in told if summary["seconds"]["median"] < SHORT_S]
    return {"ranks": RANKS, "victim": VICTIM, "left_out": left_out, "rows": rows, "ways": back,
            "busy": all("only_busy" in summary for summary in short)}  # fmt: skip


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """Without single trials, which each contender's `found` summarises."""
    rows = [{key: value for key, value in row.items() if key != "fates"} for row in document["rows"]]
    facts = ("ranks", "victim", "left_out", "ways", "remeasured")
    return {**{key: document[key] for key in facts if key in document}, "rows": rows}


def time_text(summary: dict[str, Any], limit_s: float) -> str:
    seconds = summary.get("seconds")
    if seconds is None:
        return f"none in {limit_s:g} s"
    shown = [f"{each * 1000:.0f} ms" if each < 1 else f"{each:.1f} s" for each in (seconds[name] for name in SPREAD)]
    return f"{shown[0]} ({shown[1]} to {shown[2]}){', busy' if 'only_busy' in summary else ''}"


SPREAD = ("median", "p10", "p90")
KINDS = {"error": "an exception", "ended": "its process is ended", "wrong values": "wrong values, no exception",
         "went on": "goes on", "silent": "waits on"}  # fmt: skip


def kinds_text(summary: dict[str, Any]) -> str:
    kinds = summary["kinds"]
    total = sum(kinds.values())
    return ", ".join(
        KINDS[kind] if number == total else f"{KINDS[kind]} ({number} of {total})" for kind, number in kinds.items()
    )


def message_text(text: str) -> str:
    """Returns the message as one line of a table."""
    line = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return f"`{line[:SHOWN].rstrip()}{' ...' if len(line) > SHOWN else ''}`" if line else ""


def again_text(summary: dict[str, Any]) -> str:
    if "again" not in summary:
        return "no"
    times = f", after {summary['again_s']['median']:.2f} s" if "again_s" in summary else ""
    return f"{summary['again']:.0%}{times}"


def report(document: dict[str, Any]) -> str:
    text = (
        f"{document['ranks']} ranks of one host call `all_reduce` of 100 kB again and again, and check every sum. Then "
        f"something happens to rank {document['victim']}, or it does something. Every trial has fresh processes, with "
        "each one's own settings as they come, unless the fault says otherwise; all take turns, round by round. "
        "Times are from the fault to the exception of each rank that is left, or to the end of its process where there "
        "is none: median, and in brackets the 10th to 90th percentile, over ranks and rounds. *Names it* is the share "
        f"of the other ranks' messages that name rank {document['victim']}. *Goes on together* says "
        "how often the ranks that are left could form another group (`new_group`, `MPIX_Comm_shrink`) in the same "
        f"processes, with right sums, and how long after the exception. Nothing within {LIMIT_S:g} s counts as none, "
        "and ranks that wait that long do not try to form a group.\n\n"
        f"Trials wait for others to leave the machine alone ({QUIET_S:g} s in all). Where one took less than "
        f"{SHORT_S:g} s, and others were there before it or after it, its time does not count; where that is so of "
        "all, they are shown as *busy*, and are not to be quoted. Longer times are those of limits.\n"
    )
    for row in document["rows"]:
        titles = ["", "rounds", "time", "a rank that is left", "names it", "goes on together", "message"]
        lines = []
        for name, summary in row["found"].items():
            has_culprit = not row["harmless"] and row["fault"] != "store"
            named = f"{summary['named']:.0%}" if "named" in summary and has_culprit else ""
            again = again_text(summary) if has_culprit else ""
            time = time_text(summary, row["limit_s"])
            lines.append([NAMES.get(name, name), str(summary["rounds"]), time, kinds_text(summary), named, again,
                          message_text(summary.get("text", ""))])  # fmt: skip
        heading = row["text"][0].upper() + row["text"][1:]
        note = "No rank must notice: to go on is right.\n\n" if row["harmless"] else ""
        text += f"\n## {heading}\n\n{note}{table(titles, lines)}"
    if "ways" in document:
        text += reliability_ways.report(document["ways"])
    return text + _recovery(document)


def _recovery(document: dict[str, Any]) -> str:
    text = (
        "\n## Ways back\n\n"
        "- Atoll and Gloo: the exception ends the rank's program, and torch elastic (`atoll run --max-restarts`, "
        "`torchrun --max-restarts`) starts all ranks again, if there is an exception: a rank that waits on does not "
        "end. In the same processes, a new group of those that are left, as measured above.\n"
        "- Open MPI: the job is ended as a whole, and has to be started again; with ULFM the program itself "
        "may revoke its communicator and make a smaller one.\n"
        "- The network faults are not given to Open MPI: mpirun's own processes would have to cross the same link.\n"
    )
    if "remeasured" in document:  # a part that was measured separately
        apart = document["remeasured"]
        who = " and ".join(NAMES[name] for name in apart["contenders"])
        text += (
            f"- Measured apart, without taking turns with the others: {who} where {apart['fault']}, "
            f"{apart['measured']}, at commit {apart['commit']}.\n"
        )
    for name, why in document["left_out"].items():
        text += f"- Not measured: {NAMES.get(name, name)}: {why}\n"
    return text
