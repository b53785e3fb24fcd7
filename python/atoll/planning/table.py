# SPDX-License-Identifier: Apache-2.0
"""Plans as tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll._tables import new_table, wide

Document = dict[str, Any]
RANKS = ("rank", "name", "seconds by batch", "least", "most", "watts")
PLANS = ("policy", "batches", "step", "idle", "step/bound", "J/sample")
# By the paper's names; Query is the share of the batch that a rank requests, Value the batch that it gets.
METRICS = ("rank", "name", "K (Key)", "MW", "NL", "NCW", "Query", "Value")
_BALANCENET = {"eq5": "BalanceNet, equation 5", "alg1": "BalanceNet, Algorithm 1"}


def show(document: Document, *, by_rank: bool, balancenet: bool, console: Console | None = None) -> None:
    """Prints the ranks, the plans and, if requested, each plan by rank and BalanceNet's figures."""
    console = wide(console)
    for title, table in _parts(document, by_rank, balancenet):
        console.print(Text(title, "bold"))
        console.print(table)
        console.print()
    for note, names in _notes(document["plans"]).items():
        console.print(Text(f"{', '.join(names)}: {note}"))
    for each in document["left_out"]:
        console.print(Text(f"{each['policy']} is left out: {each['reason']}", "yellow"))
    for line in advice(document):
        console.print(Text(line, "yellow"))
    console.print(Text(verdict(document), "bold"), soft_wrap=True)


def name_of(plan: Document) -> str:
    """Returns the name of a plan, with its form if that is not the normalised one."""
    return f"{plan['policy']} (literal)" if plan.get("form") == "literal" else str(plan["policy"])


def verdict(document: Document) -> str:
    """Compares the first plan, which is the equal one if all are shown, with the bound."""
    plan = document["plans"][0]
    bound = f"Atoll: {document['batch']} samples take at least {seconds_text(plan['bound'])}"
    if plan["total"] != document["batch"]:
        return f"{bound}; {name_of(plan)} takes {seconds_text(plan['step'])} for {plan['total']} samples"
    longer = 100 * (plan["distance"] - 1)
    return f"{bound}; {name_of(plan)} takes " + (f"{longer:.1f} % longer" if longer >= 0.05 else "no longer")


def advice(document: Document) -> list[str]:
    """Returns which ranks slow the job down; nothing if all ranks together are as fast, to within one percent."""
    membership = document["membership"]
    if membership["all_step"] is not None and membership["best_step"] > 0.99 * membership["all_step"]:
        return []
    return [line for line in membership["advice"] if not line.startswith("keep ")]


def seconds_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def cost_text(cost: Document) -> str:
    """Returns the seconds by batch b, in the short form of ranks."""
    factor = f"{cost['factor']:.4g} x " if "factor" in cost else ""
    fixed = cost.get("fixed") or cost.get("per_launch") or 0
    affine = (f"{fixed:.4g}+" if fixed else "") + f"{cost.get('per_sample', 0):.4g}b"
    match cost["shape"]:
        case "affine":
            text = affine
        case "saturating":
            text = f"{affine}, knee {cost['knee']:.4g}"
        case "staircase":
            text = f"{affine}, steps of {cost['step']}"
        case _:
            text = f"{len(cost['points'])} measured points"
    return factor + text + (", overlapped" if "overlap" in cost else "")


def _parts(document: Document, by_rank: bool, balancenet: bool) -> Iterator[tuple[str, Table]]:
    yield "Ranks", new_table(*RANKS, left=("name", "seconds by batch"), rows=rank_rows(document["ranks"]))
    plans = new_table(*PLANS, left=("policy", "batches"), rows=plan_rows(document["plans"]))
    yield f"Plans for {document['batch']} samples", plans
    if by_rank:
        for plan in document["plans"]:
            yield name_of(plan), _by_rank(plan)
    if balancenet:
        for title, ranks in balancenet_ranks(document):
            yield title, new_table(*METRICS, left=("name",), rows=metric_rows(ranks))


def balancenet_ranks(document: Document) -> Iterator[tuple[str, Sequence[Document]]]:
    """Yields the title and the ranks of each BalanceNet rule that was requested."""
    return ((title, ranks) for rule, title in _BALANCENET.items() if (ranks := document["balancenet"][rule]))


def rank_rows(ranks: Sequence[Document]) -> Iterator[list[str]]:
    for place, rank in enumerate(ranks):
        watts = f"{rank['busy_watts']:.4g}/{rank['idle_watts']:.4g}" if "busy_watts" in rank else "-"
        least, most = str(rank.get("least", 1)), str(rank.get("most", "-"))
        yield [str(place), rank.get("name", ""), cost_text(rank["cost"]), least, most, watts]


def plan_rows(plans: Sequence[Document]) -> Iterator[list[str]]:
    for plan in plans:
        joules = plan.get("joules_per_sample")
        yield [
            name_of(plan), " ".join(map(str, plan["batches"])), seconds_text(plan["step"]),
            f"{100 * plan['mean_idle']:.1f} %", f"{plan['distance']:.3f}", "-" if joules is None else f"{joules:.4g}",
        ]  # fmt: skip


def _notes(plans: Sequence[Document]) -> dict[str, list[str]]:
    """Returns each note with the plans that have it."""
    found: dict[str, list[str]] = {}
    for plan in plans:
        for note in plan["notes"]:
            found.setdefault(note, []).append(name_of(plan))
    return found


def _by_rank(plan: Document) -> Table:
    table = new_table("rank", "name", "samples", "computes", "waits", "idle", left=("name",))
    rows = zip(plan["names"], plan["batches"], plan["seconds"], plan["idle"], strict=True)
    for place, (name, samples, seconds, idle) in enumerate(rows):
        waits = seconds_text(plan["step"] - seconds) if plan["step"] > seconds else "-"
        table.add_row(str(place), name, str(samples), seconds_text(seconds), waits, f"{100 * idle:.1f} %")
    return table


def metric_rows(ranks: Sequence[Document]) -> Iterator[list[str]]:
    for place, rank in enumerate(ranks):
        lists = (" ".join(f"{value:.3g}" for value in rank[key]) for key in ("NL", "NCW"))
        figures = (f"{rank[key]:.3f}" for key in ("K", "MW"))
        yield [str(place), rank["name"], *figures, *lists, f"{rank['query']:.3f}", str(rank["value"])]
