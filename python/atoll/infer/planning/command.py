# SPDX-License-Identifier: Apache-2.0
"""The `atoll plan infer` sub-command."""

from typing import Annotated

import typer

from atoll.infer.planning import rates as rates_of
from atoll.infer.planning.asking import Question, ask
from atoll.planning.files import gives_tables, write

_MODEL_HELP = "A measured or published profile (JSON); with --operators the folder of a bundle."


def infer(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=_MODEL_HELP)],
    rate: Annotated[str, typer.Option(metavar="BITS", help="Rate of the link, both ways, such as 93M.")] = "",
    down: Annotated[str, typer.Option(metavar="BITS", help="Rate towards the robot, if it differs.")] = "",
    latency: Annotated[float, typer.Option(min=0, help="Seconds per message, whatever its size.")] = 0.0,
    half_duplex: Annotated[bool, typer.Option("--half-duplex", help="Both directions share one medium.")] = False,
    trace: Annotated[str, typer.Option(metavar="FILE", help="A recorded link: also replay inferences over it.")] = "",
    period: Annotated[float, typer.Option(min=0, help="Seconds between inputs of a replay; 0: without a pause.")] = 0.0,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy; repeat for several.")] = None,
    deadline: Annotated[float | None, typer.Option(min=0, help="Seconds that an inference may take.")] = None,
    input_bytes: Annotated[int | None, typer.Option(min=0, help="Bytes of the inputs on the link, as encoded.")] = None,
    chunks: Annotated[int, typer.Option(min=1, max=1 << 20, help="Number of chunks in which inputs are streamed.")] = 8,
    literal: Annotated[bool, typer.Option("--literal", help="Run intra-dp and hybrid-parallel as published.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random, intra-dp and hybrid-parallel.")] = 0,
    watts: Annotated[str, typer.Option(metavar="WATTS", help="COMPUTE/IDLE/RADIO, or a file of records.")] = "",
    operators: Annotated[
        bool, typer.Option("--operators", help="Show how a bundle's operators can be divided.")
    ] = False,
    json: Annotated[str, typer.Option(metavar="FILE", help="Also write everything to FILE; - prints it alone.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Also write a self-contained page with a picture.")] = "",
) -> None:
    """Show what each policy would do with an inference that a robot and a server divide: latency, energy, bytes, and
    how far that is from the lower bound of any plan."""
    try:
        if operators:
            from atoll.infer.planning.localities import localities

            document = localities(profile)
        else:
            document = ask(
                Question(
                    profile, rate=_rate(rate), down=_rate(down), latency=latency, half_duplex=half_duplex, trace=trace,
                    period=period, policies=policy or [], deadline=deadline, input_bytes=input_bytes, chunks=chunks,
                    literal=literal, seed=seed, watts=watts,
                )
            )  # fmt: skip
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if html:
        if operators:
            raise typer.BadParameter("--html draws plans, but --operators has none: remove one of them")
        from atoll.infer.planning.page import page

        write(html, page(document))
    if gives_tables(document, json):
        from atoll.infer.planning import table

        (table.show_localities if operators else table.show)(document)


def _rate(text: str) -> float | None:
    return rates_of.bytes_per_second(text) if text else None
