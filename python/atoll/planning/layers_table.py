# SPDX-License-Identifier: Apache-2.0
"""Plans of layers as tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from atoll._tables import new_table, wide
from atoll.planning.table import seconds_text

Document = dict[str, Any]
STAGES = ("stage", "items", "device", "rank", "forward", "backward", "send", "busy", "waits", "memory", "of", "")
_TEXTS = ("items", "device", "")


def show(answer: Document, console: Console | None = None) -> None:
    """Prints the stages of each distinct pipeline and the verdict; if nothing fits, the nearest plans that would."""
    console = wide(console, 140)
    for title, pipeline in different(answer.get("pipelines", [])):
        console.print(Text(title, "bold"))
        console.print(new_table(*STAGES, left=_TEXTS, rows=stage_rows(pipeline)))
        console.print()
    for change in answer.get("nearest", []):
        console.print(Text(f"With {change['text']}: {seconds_text(change['seconds'])}", "bold"))
        console.print(new_table(*STAGES, left=_TEXTS, rows=stage_rows(change["pipelines"][0])))
        console.print()
    for note in answer.get("notes", []):
        console.print(Text(f"{note[:1].upper()}{note[1:]}", "yellow"), soft_wrap=True)
    for line in verdict(answer):
        console.print(Text(line, "bold"), soft_wrap=True)


def different(pipelines: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Yields each distinct pipeline, titled with the numbers of all pipelines that have its stages."""
    members: dict[str, list[int]] = {}
    for place, pipeline in enumerate(pipelines):
        stages = [(stage["items"], stage["device"], stage["recompute"]) for stage in pipeline["stages"]]
        members.setdefault(repr((pipeline["micro_batches"], stages)), []).append(place)
    for places in members.values():
        pipeline = pipelines[places[0]]
        names = ", ".join(map(str, places[:8])) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
        batches = pipeline["micro_batches"]
        noun = "micro-batch" if batches == 1 else "micro-batches"
        yield f"Pipeline{'s' if len(places) > 1 else ''} {names}: {batches} {noun}", pipeline


def verdict(answer: Document) -> list[str]:
    """Returns the plan's time against its bound and against devices of one kind; or why there is no plan."""
    if not answer["feasible"]:
        return [f"Atoll: {answer.get('reason', 'the plan does not fit the memories')}"]
    samples = answer["micro_batch"] * answer["micro_batches"]
    count = answer["replicas"]
    noun = "pipeline" if count == 1 else "pipelines"
    lines = [
        f"Atoll: {samples} samples take {seconds_text(answer['seconds'])} in {count} {noun}, "
        f"micro-batches of {answer['micro_batch']}; no plan takes less than {seconds_text(answer['bound'])}, "
        f"{100 * (1 - 1 / answer['distance']):.1f} % less"
    ]
    chunked = [pipeline["chunked"]["seconds"] for pipeline in answer["pipelines"] if pipeline.get("chunked")]
    if chunked:
        lines.append(
            f"With the named {answer['chunks']} chunks on each rank, also an estimate, the longest pipeline "
            f"takes {seconds_text(max(chunked))}"
        )
    elif answer.get("chunks", 1) > 1:
        lines.append(
            f"No items are named for {answer['chunks']} chunks on each rank: there are too few, or the memories are "
            'too small; plan with fewer "chunks"'
        )
    alone = answer.get("homogeneous")
    if alone:
        gain = alone["seconds"] / answer["seconds"] if answer["seconds"] > 0 else 1.0
        lines.append(
            f"Devices of kind {alone['kind']} alone ({alone['devices']} of them) take "
            f"{seconds_text(alone['seconds'])}: "
            + ("leave the others out" if alone["wins"] else f"all together are {gain:.3f} times as fast")
        )
    return lines


def items_text(stage: Document) -> str:
    """Returns the first and last name of a stage's items."""
    names = stage["names"]
    return str(names[0]) if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"


def bytes_text(count: float | None) -> str:
    if count is None:
        return "-"
    return f"{count / 2**30:.4g} GiB" if count >= 2**28 else f"{count / 2**20:.4g} MiB"


def stage_rows(pipeline: Document) -> Iterator[list[str]]:
    for place, stage in enumerate(pipeline["stages"]):
        waits = 100 * (1 - stage["seconds"] / pipeline["period"]) if pipeline["period"] > 0 else 0.0
        marks = ["recomputes"] if stage["recompute"] else []
        marks += [] if stage["fits"] else ["does not fit"]
        yield [
            str(place), items_text(stage), stage["device"], str(stage["rank"]), seconds_text(stage["forward"]),
            seconds_text(stage["backward"]), seconds_text(stage["send"]), seconds_text(stage["seconds"]),
            f"{waits:.1f} %", bytes_text(stage["memory_bytes"]), bytes_text(stage["memory_cap_bytes"]),
            ", ".join(marks),
        ]  # fmt: skip
