# SPDX-License-Identifier: Apache-2.0
"""The `atoll simulate` command."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from atoll.planning.files import gives_tables, page_of_charts, read_json, write

SCHEMA = 1
_MAX_DRAWN = 64  # ranks
_PLAN_HELP = "A plan as JSON (see docs/simulate.md), or a request of `atoll plan layers`, with --layers."
_LINKS_HELP = "The named links of the plan to use; repeat to compare several, or: all."


def simulate(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help=_PLAN_HELP)],
    links: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_LINKS_HELP)] = None,
    schedule: Annotated[
        str, typer.Option(metavar="NAME", help="Schedule instead of the plan's: GPipe, 1F1B, ZB1P, ...")
    ] = "",
    steps: Annotated[int, typer.Option(min=0, help="Number of steps; 0: the plan's value.")] = 0,
    layers: Annotated[str, typer.Option(metavar="FILE", help="The answer of `atoll plan layers` to PLAN.")] = "",
    trace: Annotated[str, typer.Option(metavar="FILE", help="Also write a Chrome trace, for Perfetto.")] = "",
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write the answer to FILE; - prints it alone.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Also write a self-contained page with a picture.")] = "",
) -> None:
    """Simulate a training step: when ranks compute, send and wait, how long it takes, and what it consists of."""
    try:
        request = _request(plan, layers)
        if schedule:
            request["schedule"] = schedule
        if steps:
            request["steps"] = steps
        names = _names(request, links or [])
        if len(names) > 1 and (trace or html):
            raise ValueError("--trace and --html show a single simulation: give one --links")
        answers = {name: answer_of(request, name) for name in names}
        if trace:
            from atoll.plan.documents import trace_text

            write(trace, trace_text(_with_links(request, names[0])))
        if html:
            drawn = answer_of(request, names[0], timeline=True)
            write(html, page_of_charts("atoll.planning.simulate_page", drawn, most_ranks=_MAX_DRAWN))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    one = next(iter(answers.values()))
    if gives_tables(one if len(answers) == 1 else answers, json):
        from atoll.planning.simulate_table import compare, show

        if len(answers) == 1:
            show(one)
        else:
            compare({name or "": answer for name, answer in answers.items()})


def answer_of(request: Mapping[str, Any], links: str | None, *, timeline: bool = False) -> dict[str, Any]:
    """Returns the answer of the simulation, with the links of that name; None stands for the links that the plan
    uses."""
    from atoll.plan import documents

    return {"schema": SCHEMA, **documents.simulate({**_with_links(request, links), "timeline": timeline})}


def _with_links(request: Mapping[str, Any], links: str | None) -> dict[str, Any]:
    return dict(request) if links is None else {**request, "use": links}


def _names(request: Mapping[str, Any], wanted: Sequence[str]) -> list[str | None]:
    given = request.get("links")
    known = list(given) if isinstance(given, Mapping) else []
    if "all" in wanted and "all" not in known:
        if not known:
            raise ValueError("--links all: the plan's links have no names")
        return [*known]
    return [*wanted] if wanted else [None]


def _request(path: str, layers: str) -> dict[str, Any]:
    value = _read(path)
    if "items" not in value:
        if layers:
            raise ValueError(f"--layers {layers}: {path} is already a plan, not a request of `atoll plan layers`")
        return value
    from atoll.plan.from_layers import plan_of

    if not layers and "plan" not in value:
        raise ValueError(f"{path} is a request of `atoll plan layers`: give the answer with --layers")
    return plan_of(value, _read(layers) if layers else value["plan"])


def _read(path: str) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value
