# SPDX-License-Identifier: Apache-2.0
"""The sections of a page about a session's inferences."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from atoll.report.charts import Chart, Series
from atoll.report.inferences import Inferences, percentile
from atoll.report.lanes import lanes
from atoll.report.parts import (
    BAD,
    GOOD,
    PLAIN,
    Bar,
    Sentence,
    bars,
    number,
    percent,
    scaled,
    seconds_text,
    section,
    table,
)
from atoll.report.records import Line

WORTH = 0.05
NEAR = 1.1
GROUPS = 100  # groups of inferences whose percentiles are shown over time
MAX_DIVISIONS = 4
_TIMES = (("computes", "blue"), ("waits for the server", "grey"), ("sends", "amber"), ("receives", "purple"))
_WORDS = {"local": "by this machine alone", "server": "by the server alone", "mixed": "by both"}


def inference_verdict(of: Inferences) -> Iterator[Sentence]:
    counts = of.counts
    origins = ", ".join(
        f"{percent(count / of.number)} {_WORDS.get(name, name)}" for name, count in counts["origins"].items() if count
    )
    yield Sentence(
        f"{of.number:,} inferences: half of them take at most {seconds_text(of.latency(0.5))}, 99 of 100 at most "
        f"{seconds_text(of.latency(0.99))}; answered {origins}."
    )
    if alone := of.state("local_seconds"):
        times = alone / of.latency(0.5)
        is_worth = times >= 1 + WORTH
        what = f"{number(times)} times as long" if is_worth else "the server does not make it faster"
        yield Sentence(f"This machine alone takes {seconds_text(alone)}: {what}.", GOOD if is_worth else PLAIN)
    deadline = of.record.about.get("deadline")
    if counts["missed"]:
        limit = f" of {seconds_text(deadline)}" if deadline else ""
        yield Sentence(
            f"{percent(counts['missed'] / of.number)} missed their deadline{limit}: the chart of latency shows "
            f"when; more bandwidth, a faster machine or a later deadline would help.",
            BAD,
        )
    elif deadline:
        yield Sentence(f"None missed the deadline of {seconds_text(deadline)}.", GOOD)
    if (distance := of.distance()) is not None:
        kind = GOOD if distance <= NEAR else PLAIN
        above = f"{percent(distance - 1)} above" if distance >= 1 else f"{percent(1 - distance)} below"
        yield Sentence(f"Half of the divided inferences are at most {above} the lower bound of any plan.", kind)
    yield Sentence(
        f"An inference sends {_bytes(counts['up_bytes'] / of.number)} and receives "
        f"{_bytes(counts['down_bytes'] / of.number)}, and takes {number(counts['joules'] / of.number)} J of this "
        f"machine, estimated."
    )
    if counts["guarded"]:
        share = percent(counts["guarded"] / of.number)
        yield Sentence(f"In {share} of them this machine did not wait for the server, or raced it.")


def inference_sections(of: Inferences) -> Iterator[str]:
    yield section("Latency", *_latency(of))
    yield section("Who computes what", _origins(of), *_divisions(of))
    link = [*_link(of)]
    if link:
        yield section("Link", *link)
    yield section("Energy", *_energy(of))


def _times(of: Inferences, lines: Sequence[Line]) -> list[float]:
    return [round(line["time"] - of.record.began, 3) for line in lines]


def _latency(of: Inferences) -> Iterator[str]:
    lines = of.lines
    factor, unit = scaled(max((line["seconds"] for line in lines), default=1.0))
    size = max(1, len(lines) // GROUPS)
    groups = [lines[start : start + size] for start in range(0, len(lines), size)]
    series = [
        Series(name, [percentile([line["seconds"] for line in group], share) * factor for group in groups], colour)
        for name, share, colour in (("median", 0.5, "blue"), ("95 %", 0.95, "orange"), ("99 %", 0.99, "purple"))
    ]
    bounds = [[line["bound"] for line in group if line["bound"]] for group in groups]
    if any(bounds):
        series.append(Series("bound", [min(each) * factor if each else None for each in bounds], "green"))
    deadline = of.record.about.get("deadline")
    if deadline and deadline * factor < 20 * max(series[0].values[0] or 0, 1e-12):
        series.append(Series("deadline", [deadline * factor] * len(groups), "grey"))
    about = f"For groups of {size} consecutive inferences." if size > 1 else "For each inference."
    x = _times(of, [group[0] for group in groups])
    yield Chart("Latency", about, "seconds since the session began", unit, x, series).html()
    misses = [100 * sum(bool(line["missed"]) for line in group) / len(group) for group in groups]
    if any(misses):
        yield Chart("Missed deadlines", about, "seconds since the session began", "%", x,
                    [Series("missed", misses, "orange")]).html()  # fmt: skip
    shares = (("median", 0.5), ("90 %", 0.9), ("95 %", 0.95), ("99 %", 0.99), ("99.9 %", 0.999), ("worst", 1.0))
    rows = [[name, seconds_text(of.latency(share))] for name, share in shares]
    yield table(("share of inferences", "latency at most"), rows, "Percentiles of all inferences, to about 1 %")


def _origins(of: Inferences) -> str:
    origins = of.counts["origins"]
    legend = (("this machine alone", "blue"), ("both", "purple"), ("the server alone", "green"))
    row = Bar("answers", [100 * origins.get(name, 0) / of.number for name in ("local", "mixed", "server")])
    parts = [line for line in of.lines if "computing" in line]
    drawn = bars("Who answered", "Share of all inferences.", legend, [row], "%")
    if not parts:
        return drawn
    names = ("computing", "waiting", "sending", "receiving")
    means = [sum(line[name] for line in parts) / len(parts) for name in names]
    factor, unit = scaled(max(means))
    computing, waiting, sending, receiving = (mean * factor for mean in means)
    rows = [
        Bar("this machine", [computing, waiting, 0.0, 0.0]),
        Bar("its radio", [0.0, 0.0, sending, receiving]),
    ]
    about = "Means per inference. The radio overlaps both, for the time of the bytes at the link's estimated rates."
    return drawn + bars("What this machine does in the meantime", about, _TIMES, rows, unit)


def _divisions(of: Inferences) -> Iterator[str]:
    used = Counter(line["plan"] for line in of.lines)
    rows = [[name, f"{count:,}"] for name, count in used.most_common()]
    yield table(("plan", "inferences in the record"), rows, "Plans that were used")
    for division in of.divisions[:MAX_DIVISIONS]:
        yield lanes(division)
    if len(of.divisions) > MAX_DIVISIONS:
        yield f"<p>{len(of.divisions) - MAX_DIVISIONS} more divisions were used but are not drawn.</p>"


def _link(of: Inferences) -> Iterator[str]:
    states = [line for line in of.states if line.get("up_rate")]
    if states:
        series = [
            Series(name, [8e-6 * line[key] if line.get(key) else None for line in states], colour)
            for name, key, colour in (("up", "up_rate", "amber"), ("down", "down_rate", "purple"))
        ]
        yield Chart("Bandwidth", "As estimated by the session.", "seconds since the session began", "Mbit/s",
                    _times(of, states), series).html()  # fmt: skip
    if of.counts["up_bytes"] or of.counts["down_bytes"]:
        factor, unit = scaled(max(max(line["up_bytes"], line["down_bytes"]) for line in of.lines), "B")
        series = [
            Series(name, [line[key] * factor for line in of.lines], colour)
            for name, key, colour in (("up", "up_bytes", "amber"), ("down", "down_bytes", "purple"))
        ]
        yield Chart("Bytes of an inference", "As they were sent, packed.", "seconds since the session began", unit,
                    _times(of, of.lines), series).html()  # fmt: skip
    losses = of.state("link_losses")
    if losses:
        yield f"<p>{escape(str(losses))} inferences lost the link while they ran.</p>"


def _energy(of: Inferences) -> Iterator[str]:
    joules = [line["joules"] for line in of.lines]
    about = "The energy of this machine, estimated from the time that it computes, waits and sends."
    yield Chart("Energy of an inference", about, "seconds since the session began", "J", _times(of, of.lines),
                [Series("energy", joules, "green")]).html()  # fmt: skip


def _bytes(count: float) -> str:
    factor, unit = scaled(count, "B")
    return f"{number(count * factor)} {unit}"
