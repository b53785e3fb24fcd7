# SPDX-License-Identifier: Apache-2.0
"""The `atoll plan` sub-commands."""

from typing import Annotated, Any

import typer

from atoll.planning import ranks as ranks_of
from atoll.planning.files import gives_tables, page_of_charts, write

SCHEMA = 1
plan = typer.Typer(name="plan", help="Predict the effect of plans before a training.", no_args_is_help=True)

_RANK_HELP = "A rank in short form; repeat for each. fast:cost=0.002+0.0005b takes 2 ms plus 0.5 ms per sample."


@plan.command()
def batches(
    batch: Annotated[int, typer.Option(min=1, help="Samples per step over all ranks.")],
    rank: Annotated[list[str] | None, typer.Option(metavar="RANK", help=_RANK_HELP)] = None,
    ranks: Annotated[str, typer.Option(metavar="FILE", help="Ranks as a JSON list of objects.")] = "",
    profiles: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A measured device profile; repeat for each rank.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Only this policy, with its times rank by rank.")] = "",
    form: Annotated[str, typer.Option(help="Form of a balancenet policy: normalised or literal.")] = "",
    shares: Annotated[str, typer.Option(metavar="A,B,...", help="Shares of the policy fixed, one per rank.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy random.")] = 0,
    slowdown: Annotated[float, typer.Option(min=0, help="For energy: allowed slowdown against the optimum.")] = 0.1,
    probe: Annotated[int, typer.Option(min=0, help="For kaitian: batch of the scores; 0: an equal share.")] = 0,
    balancenet: Annotated[bool, typer.Option("--balancenet", help="Show what BalanceNet computes by rank.")] = False,
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write everything to FILE; - prints it alone.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Also write a self-contained page with charts.")] = "",
) -> None:
    """Compare how policies would divide a batch among ranks: predicted times, waiting, energy, and the distance from
    the lower bound of any division.

    Ranks come from --ranks, --rank and --profiles, in this order."""
    try:
        request = {
            "ranks": _ranks(ranks, rank or [], profiles or []), "batch": batch, "seed": seed, "slowdown": slowdown,
            "probe": probe,
        }  # fmt: skip
        if shares:
            request["shares"] = _shares(shares)
        document = _answer(request, policy, form, balancenet)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if html:
        write(html, page_of_charts("atoll.planning.page", document))
    if gives_tables(document, json):
        from atoll.planning.table import show

        show(document, by_rank=bool(policy), balancenet=balancenet)


def _ranks(file: str, short: list[str], profiles: list[str]) -> list[dict[str, Any]]:
    found = ranks_of.from_file(file) if file else []
    for text in short:
        found += ranks_of.from_text(text, len(found))
    for path in profiles:
        found.append(ranks_of.from_profile(path, len(found)))
    if not found:
        raise ValueError(f"no ranks are given: give --rank {ranks_of.SHORT_FORM}, --ranks FILE or --profiles FILE")
    return found


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--shares {text!r}: give a number for each rank, separated by commas") from None


def _answer(request: dict[str, Any], policy: str, form: str, balancenet: bool) -> dict[str, Any]:
    """Returns what is shown: one plan, or all of them."""
    from atoll import _C

    if form and not policy.startswith("balancenet"):
        raise ValueError(f"--form {form}: give --policy balancenet-eq5 or balancenet-alg1 with it")
    asked = {"schema": SCHEMA, "batch": request["batch"], "ranks": request["ranks"]}
    everything = _C.explain_batches(request) if balancenet or not policy else {}
    metrics = {name: everything.pop(f"balancenet-{name}", []) for name in ("eq5", "alg1")}
    if policy:
        wanted = {**request, "policy": policy} | ({"form": form} if form else {})
        everything = {"plans": [_C.plan_batches(wanted)], "left_out": []}
    membership = _C.advise_membership({"ranks": request["ranks"], "batch": request["batch"]})
    return {**asked, **everything, "membership": membership, "balancenet": metrics}
