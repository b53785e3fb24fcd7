# SPDX-License-Identifier: Apache-2.0
"""`atoll plan layers`: assigns the layers of a model to devices."""

import json as json_module
from typing import Annotated, Any

import typer

from atoll.planning.files import gives_tables, read_json, write

Document = dict[str, Any]


def layers(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Items, devices and links as JSON.")],
    batch: Annotated[int, typer.Option(min=0, help="Samples per step; 0: the value in PROFILE.")] = 0,
    micro_batch: Annotated[str, typer.Option(metavar="A,B,...", help="Sizes of micro-batches to choose from.")] = "",
    replicas: Annotated[str, typer.Option(metavar="A,B,...", help="Numbers of pipelines to choose from.")] = "",
    schedule: Annotated[str, typer.Option(help="1f1b, gpipe, interleaved or zero-bubble.")] = "",
    transfers: Annotated[str, typer.Option(help="exposed or overlapped.")] = "",
    recompute: Annotated[str, typer.Option(help="auto, never or always.")] = "",
    leave_out: Annotated[bool, typer.Option("--leave-out", help="Allow devices without a stage.")] = False,
    given: Annotated[str, typer.Option("--plan", metavar="FILE", help="Price this plan, or that of an answer.")] = "",
    runtime: Annotated[
        str, typer.Option("--for", help="Write it for a runtime: megatron, flagscale, torchtitan.")
    ] = "",
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write everything to FILE; - prints it alone.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Also write a self-contained page with charts.")] = "",
) -> None:
    """Divide a model's layers among unlike devices as a pipeline: the fastest stages, their time, and the distance from
    the bound set by the devices' speeds. Options override PROFILE.

    Exits with 1 if nothing fits the devices' memories, and names the nearest that would."""
    try:
        request = _request(profile)
        for key, text in (("schedule", schedule), ("transfers", transfers), ("recompute", recompute)):
            if text:
                request[key] = text
        for key, text in (("micro_batch", micro_batch), ("replicas", replicas)):
            if text:
                request[key] = _integers(key, text)
        if batch:
            request["batch"] = batch
        if leave_out:
            request["leave_out"] = True
        answer = _answer(request, given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if runtime:
        typer.echo(json_module.dumps(_format(answer, runtime), indent=1))
        return
    if html:
        from atoll.planning.layers_page import page

        write(html, page(answer))
    if gives_tables(answer, json):
        from atoll.planning.layers_table import show

        show(answer)
    if not answer["feasible"]:
        raise typer.Exit(1)


def _request(path: str) -> Document:
    request = read_json(path)
    if not isinstance(request, dict):
        raise ValueError(f"{path} is not a JSON object with items, devices and batch")
    return request


def _integers(key: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--{key.replace('_', '-')} {text!r}: give integers separated by commas") from None


def _answer(request: Document, given: str) -> Document:
    from atoll.plan.documents import plan_layers, price_layers

    return price_layers({**request, "plan": _request(given)}) if given else plan_layers(request)


def _format(answer: Document, runtime: str) -> Document:
    formats = answer.get("formats", {})
    if not answer["feasible"]:
        raise typer.BadParameter(answer.get("reason", "the plan does not fit the devices' memories"))
    if runtime not in formats:
        raise typer.BadParameter(f"--for {runtime}: choose from {', '.join(formats)}")
    if "refused" in formats[runtime]:
        raise typer.BadParameter(formats[runtime]["refused"])
    found: Document = formats[runtime]
    return found
