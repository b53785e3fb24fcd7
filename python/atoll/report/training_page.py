# SPDX-License-Identifier: Apache-2.0
"""The sections of a page about a training."""

from collections.abc import Callable, Iterator, Sequence

from atoll.report.charts import COLOURS, Chart, Series
from atoll.report.links import Measured, link_use
from atoll.report.parts import Bar, bars, keys, scaled, section, table
from atoll.report.records import Training
from atoll.report.steps import Summary, parts_of, representative_ranks
from atoll.watching.record import NEW_PLAN, WindowRecord

LEGEND = (("loads", "amber"), ("computes", "blue"), ("waits for slower ranks", "grey"), ("exchanges", "purple"),
          ("rest", "brown"))  # fmt: skip
MAX_CHARTS, MAX_LINES = 8, 8


def training_sections(training: Training, of: Summary, measured: Measured | None) -> Iterator[str]:
    yield section("Where the time goes", _step_bars(of), *_rank_charts(training, of))
    yield section("Distance from the bound", *_distance(training))
    yield section("Shares and plans", *_shares(training, of), _events(training))
    noted = "".join(_noted(training))
    if noted:
        yield section("Loss and other noted values", noted)
    communication = [*_communication(training, of), *link_use(of, measured)]
    if any(communication):
        yield section("Communication", *communication)


def _step_bars(of: Summary) -> str:
    factor, unit = scaled(of.wall)
    rows = [Bar(of.name(rank), [seconds * factor for seconds in of.parts[rank]]) for rank in of.ranks]
    about = "Medians over the training. Exchanging is the communication that computing does not hide."
    return bars("A step of each rank", about, LEGEND, rows, unit)


def _rank_charts(training: Training, of: Summary) -> Iterator[str]:
    """Yields a chart over time for each rank."""
    windows = _same_ranks(training, of)
    chosen = representative_ranks(of, MAX_CHARTS)
    factor, unit = scaled(max(window.wall_seconds for window in windows))
    if len(chosen) < len(of.devices):
        yield f"<p>Of {len(of.devices)} ranks, the {len(chosen)} that wait least and most.</p>"
    yield keys(LEGEND)
    yield '<div class="several">'
    for rank in chosen:
        parts = [parts_of(window, rank) for window in windows]
        series = [
            Series(name, [each[place] * factor for each in parts], colour)
            for place, (name, colour) in enumerate(LEGEND)
        ]
        about = f"{100 * of.share(of.parts[rank].wait):.0f} % of a step waiting for slower ranks."
        yield Chart(f"Rank{of.name(rank)[4:]}", about, "step", unit, _steps(windows), series, is_stacked=True).html()
    yield "</div>"


def _distance(training: Training) -> Iterator[str]:
    windows = training.windows
    factor, unit = scaled(max(window.wall_seconds for window in windows))

    def values(of: Callable[[WindowRecord], float | None]) -> list[float | None]:
        return [None if (value := of(window)) is None else value * factor for window in windows]

    series = [
        Series("measured", values(lambda window: window.wall_seconds or None), "blue"),
        Series("predicted", values(lambda window: window.predicted_seconds), "green"),
        Series("bound", values(lambda window: window.bound_seconds), "orange"),
    ]
    about = (
        "Seconds of a step as measured and as predicted by the plan, and the lower bound of any division of the batch."
    )
    yield Chart("Step time", about, "step", unit, _steps(windows), series, marks=_plan_marks(training)).html()
    distances = [window.distance if window.wall_seconds else None for window in windows]
    if any(distance is not None for distance in distances):
        about = "Measured over bound: 1 is the optimum of any division."
        chart = Chart("Distance from the bound", about, "step", "times", _steps(windows),
                      [Series("measured over bound", distances, "blue")], from_zero=False)  # fmt: skip
        yield chart.html()
    rates = [window.samples_per_second or None for window in windows]
    yield Chart("Pace", "Samples of all ranks.", "step", "samples per second", _steps(windows),
                [Series("samples per second", rates, "blue")]).html()  # fmt: skip


def _shares(training: Training, of: Summary) -> Iterator[str]:
    windows = _same_ranks(training, of)
    chosen = representative_ranks(of, MAX_LINES)
    series = [
        Series(of.name(rank), [float(window.batches[rank]) for window in windows], COLOURS[place % len(COLOURS)])
        for place, rank in enumerate(chosen)
    ]
    about = "Samples of each rank in a step. A vertical line is a new plan."
    chart = Chart("Shares", about, "step", "samples", _steps(windows), series, is_stepped=True,
                  marks=_plan_marks(training))  # fmt: skip
    yield chart.html()


def _plan_marks(training: Training) -> list[tuple[float, str]]:
    return [(float(event.step), event.text) for event in training.events if event.kind == NEW_PLAN]


def _events(training: Training) -> str:
    if not training.events:
        return "<p>The plan has not changed, and there were no other events.</p>"
    rows = [[f"{event.step:,}", event.kind, event.text] for event in training.events]
    return table(("step", "kind", "what"), rows, "Events", numbers=False)


def _noted(training: Training) -> Iterator[str]:
    names = dict.fromkeys(name for window in training.windows for name in window.noted)
    for name in names:
        values = [window.noted.get(name) for window in training.windows]
        about = "The mean over the steps of an update interval and all ranks, weighted as gradients are."
        chart = Chart(name, about, "step", "", _steps(training.windows), [Series(name, values, "blue")],
                      from_zero=False)  # fmt: skip
        yield chart.html()


def _communication(training: Training, of: Summary) -> Iterator[str]:
    windows = _same_ranks(training, of)
    chosen = representative_ranks(of, MAX_LINES)
    kinds: list[tuple[str, str, Callable[[WindowRecord], tuple[float, ...]]]] = [
        ("Bridge", "Waits in collectives for other islands, in a step.", lambda window: window.bridge_seconds),
        ("Inside islands", "Time in collectives within the island, in a step, without the work of a vendor's library.",
         lambda window: window.inside_seconds),
        ("Staging", "Copies between the device and the host, in a step.", lambda window: window.staging_seconds),
    ]  # fmt: skip
    for title, about, values in kinds:
        there = [window for window in windows if values(window)]
        largest = max((max(values(window)) for window in there), default=0.0)
        if largest <= 0:
            continue
        factor, unit = scaled(largest)
        series = [
            Series(of.name(rank), [values(window)[rank] * factor for window in there], COLOURS[place % len(COLOURS)])
            for place, rank in enumerate(chosen)
        ]
        hidden = " It may overlap with computing."
        yield Chart(title, about + hidden, "step", unit, _steps(there), series).html()


def _same_ranks(training: Training, of: Summary) -> list[WindowRecord]:
    return [window for window in training.windows if window.devices == of.devices]


def _steps(windows: Sequence[WindowRecord]) -> list[float]:
    return [float(window.step) for window in windows]


def attempts(trainings: Sequence[Training]) -> str:
    """Returns one line for each record of a training; restarts leave several."""
    rows = []
    for training in trainings:
        steps = [window.step for window in training.windows]
        span = f"{min(steps):,} to {max(steps):,}" if steps else "none"
        rows.append([training.record.path.name, str(len(training.record.about.get("devices") or [])), span,
                     how_it_ended(training)])  # fmt: skip
    return table(("record", "ranks", "steps", "end"), rows, "Records of trainings in this folder", numbers=False)


def how_it_ended(training: Training) -> str:
    end = training.record.end
    if end is None:
        return "unknown: the process was killed, or is still running"
    return f"with {end['error']}" if end.get("error") else "normally"
