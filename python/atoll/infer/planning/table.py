# SPDX-License-Identifier: Apache-2.0
"""Plans of divided inferences as tables."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from atoll._tables import new_table, wide
from atoll.infer.planning.rates import bytes_text, rate_text
from atoll.planning.table import seconds_text

Document = dict[str, Any]
# The gap to the bound, as a share of a plan's time, is the most that any plan could save.
PLANS = ("policy", "latency", "energy", "up", "down", "link", "robot", "server", "twice", "gap")
REPLAYS = ("policy", "mean", "std", "p50", "p95", "p99", "energy", "up", "answers here", "missed")


def show(document: Document, console: Console | None = None) -> None:
    """Prints the model, the plans, and their replays over a trace."""
    console = wide(console)
    for line in headline(document):
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(new_table(*PLANS, left=("policy",), rows=plan_rows(document)))
    if document.get("replay"):
        console.print()
        recorded = document["trace"]
        console.print(Text(f"Inferences over {recorded['file']}, {recorded['seconds']:.0f} s", "bold"), soft_wrap=True)
        console.print(new_table(*REPLAYS, left=("policy",), rows=replay_rows(document)))
    console.print()
    for note in document["notes"]:
        console.print(Text(note, "yellow"), soft_wrap=True)
    console.print(Text(verdict(document), "bold"), soft_wrap=True)


def show_localities(document: Document, console: Console | None = None) -> None:
    """Prints how many operators can be divided."""
    console = wide(console)
    console.print(Text(f"{document['nodes']} operators, bundle {document['bundle'][:16]}", "bold"))
    table = new_table("input", "dim", "rows", "local", "partial", "global", "constant", left=("input",))
    for row in document["inputs"]:
        numbers = (str(row[key]) for key in ("dim", "rows", "local", "partial", "global", "constant"))
        table.add_row(row["input"], *numbers)
    console.print(table)


def show_profile(document: Document, top: int = 0, console: Console | None = None) -> None:
    """Prints the time of each operator of a model, or of the `top` slowest here."""
    console = wide(console)
    for line in profile_headline(document):
        console.print(Text(line), soft_wrap=True)
    console.print()
    rows = document["rows"]
    if top:
        rows = sorted(rows, key=lambda row: -row["local"])[:top]
    table = new_table("", "operator", "rows", "here", "server", "bytes out", "share", left=("operator",))
    for row in rows:
        place, times, share = str(row["node"]), (row["local"], row["server"]), _percent(row["share"])
        if row["node"] < 0:
            place, times, share = "", (None, None), ""
        here, there = (_seconds(seconds) for seconds in times)
        table.add_row(place, row["name"], str(row["rows"]), here, there, bytes_text(row["bytes"]), share)
    left = len(document["rows"]) - len(rows)
    others = f"all{f', {left} of them not shown' if left else ''}"
    server = document["server"]
    table.add_row(
        "", others, "", _seconds(document["local"]["seconds"]), _seconds(server["seconds"] if server else None), "", ""
    )
    console.print(table)


def profile_headline(document: Document) -> Iterator[str]:
    """Yields lines about the model and the measured machines."""
    divided, local, server = document["divided"], document["local"], document["server"]
    rows = f", rows along dimension {divided['dim']} of {divided['input']}" if divided else ", whole operators"
    yield f"{document['name']}: {sum(row['node'] >= 0 for row in document['rows'])} operators{rows}"
    yield f"here: {local['device']}{_runner(local)}, {seconds_text(local['seconds'])} for the model"
    if server:
        faster = f", {local['seconds'] / server['seconds']:.3g} times as fast" if server["seconds"] else ""
        yield f"server: {server['device']}{_runner(server)}, {seconds_text(server['seconds'])} for the model{faster}"
    watts = document["watts"]
    figures = "/".join(f"{watts[key]:.4g}" for key in ("compute_watts", "idle_watts", "radio_watts"))
    yield f"watts here: {figures} for computing, waiting and the radio ({document['watts_source']})"


def _runner(side: Document) -> str:
    return f" ({side['runner']})" if side["runner"] else ""


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else seconds_text(seconds)


def headline(document: Document) -> Iterator[str]:
    link, watts = document["link"], document["watts"]
    both = "" if link["down"] == link["up"] else f" up, {rate_text(link['down'])} down"
    shared = ", half duplex" if link["half_duplex"] else ""
    yield (
        f"{document['model']}: {document['operators']} operators, "
        f"{seconds_text(document['robot_seconds'])} on the robot, "
        f"{seconds_text(document['server_seconds'])} on the server; inputs of {bytes_text(document['input_bytes'])}"
    )
    yield f"link: {rate_text(link['up'])}{both}, {seconds_text(link['latency'])} per message{shared}"
    figures = "/".join(f"{watts[key]:.4g}" for key in ("compute_watts", "idle_watts", "radio_watts"))
    yield f"watts: {figures} for computing, waiting and the radio ({document['watts_source']})"


def plan_rows(document: Document) -> Iterator[list[str]]:
    for plan in document["plans"]:
        seconds = plan["seconds"]
        yield [
            plan["policy"], seconds_text(seconds), f"{plan['joules']:.4g} J", bytes_text(plan["up_bytes"]),
            bytes_text(plan["down_bytes"]), _share(plan["link_busy"], seconds), _share(plan["robot_busy"], seconds),
            _share(plan["server_busy"], seconds), _share(plan["rows_twice"], seconds), _percent(plan["gap"]),
        ]  # fmt: skip


def replay_rows(document: Document) -> Iterator[list[str]]:
    for row in document["replay"]:
        seconds = row["seconds"]
        times = (seconds_text(seconds[key]) for key in ("mean", "std", "p50", "p95", "p99"))
        yield [
            name_of(row), *times, f"{row['joules']['mean']:.4g} J", bytes_text(row["up_bytes"]),
            _percent(row["local_answers"]), _percent(row["missed"]) if "missed" in row else "-",
        ]  # fmt: skip


def name_of(row: Document) -> str:
    """Returns the policy of a replay, with its forecast and its deadline, if any."""
    forecast = f", {row['forecast']}" if "forecast" in row else ""
    return str(row["policy"]) + forecast + (f", by {seconds_text(row['deadline'])}" if "deadline" in row else "")


def verdict(document: Document) -> str:
    """Compares the fastest plan with the simple ones and the bound."""
    best = min(document["plans"], key=lambda plan: plan["seconds"])
    bound = document["bound"]["seconds"]
    limits = {key: document["bound"][key] for key in ("robot", "server", "up", "down")}
    most = max(limits, key=lambda key: limits[key])
    return (
        f"Atoll: {best['policy']} takes {seconds_text(best['seconds'])}; "
        f"no plan takes less than {seconds_text(bound)}, "
        f"which is limited most by {'the link ' + most if most in ('up', 'down') else 'the ' + most}"
    )


def _share(part: float, whole: float) -> str:
    return _percent(part / whole if whole else 0.0)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
