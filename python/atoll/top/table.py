# SPDX-License-Identifier: Apache-2.0
"""Endpoints as tables and lines that fit 80 columns."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.report.parts import number, percent, seconds_text
from atoll.top.endpoint import Endpoint, Sample

MAX_RANKS = 32  # per training; further ones are only counted
BAR = 22  # columns
_PARTS = (("█", "blue", "computes"), ("▒", "yellow", "loads"), ("░", "bright_black", "waits"),
          ("▓", "magenta", "exchanges"))  # fmt: skip
_SESSION_BAR = 40  # columns
_SESSION_PARTS = (("█", "blue", "computing", "computes here"), ("░", "bright_black", "waiting", "waits for the server"))
NEAR = 1.05


def shown(endpoints: Sequence[Endpoint]) -> RenderableType:
    parts: list[RenderableType] = []
    for endpoint in endpoints:
        parts += list(_endpoint(endpoint))
    return Group(*parts)


def _endpoint(endpoint: Endpoint) -> Iterator[RenderableType]:
    sample = endpoint.sample
    yield Text(endpoint.url, "bold", overflow="fold")
    if endpoint.problem:
        old = f"; metrics from {seconds_text(endpoint.silent_seconds)} ago" if sample and sample.numbers else ""
        yield Text(f"  {endpoint.problem}{old}", "red")
    if sample is not None and sample.is_training:
        yield from _training(sample)
    if sample is not None and sample.is_server:
        yield _server(endpoint, sample)
    if sample is not None and sample.is_session:
        yield from _session(endpoint, sample)
    yield Text()


def _training(sample: Sample) -> Iterator[RenderableType]:
    wall, bound = sample.one("step_seconds"), sample.one("bound_step_seconds")
    facts = [f"step {sample.one('step') or 0:,.0f}"]
    if wall:
        facts.append(f"{seconds_text(wall)} per step")
    if (rate := sample.one("samples_per_second")) is not None:
        facts.append(f"{number(rate)} samples/s")
    if (plan := sample.one("plan_version")) is not None:
        facts.append(f"plan {plan:.0f}")
    facts += [f"{name} {number(value)}" for name, value in sample.by("noted", "name").items()]
    yield Text("  " + ", ".join(facts))
    if wall and bound:
        distance = wall / bound
        yield Text(f"  {_distance(distance)} the bound of {seconds_text(bound)}",
                   "green" if distance <= NEAR else "yellow")  # fmt: skip
    yield _ranks(sample, wall or 0.0)
    key = Text("  ")
    for sign, style, name in _PARTS:
        key.append(sign, style).append(f" {name}  ", "dim")
    yield key
    events = sample.by("events_total", "kind")
    if events:
        yield Text("  " + ", ".join(f"{kind}: {count:.0f}" for kind, count in events.items()), "dim")


def _distance(distance: float) -> str:
    return f"{percent(distance - 1)} above" if distance >= 1 else f"{percent(1 - distance)} below"


def _ranks(sample: Sample, wall: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1))
    for name in ("rank", "device", "samples", "computes", "loads", "waits", "bridge", "step"):
        is_text = name in ("device", "step")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    devices = {
        dict(labels)["rank"]: dict(labels).get("device", "") for labels in sample.numbers.get("compute_seconds", {})
    }
    by_rank = {name: sample.by(name, "rank") for name in
               ("batch_samples", "compute_seconds", "input_seconds", "waiting_ratio", "exposed_seconds",
                "bridge_seconds")}  # fmt: skip
    ranks = sorted(devices, key=lambda text: (len(text), text))
    for rank in ranks[:MAX_RANKS]:
        own = {name: values.get(rank) for name, values in by_rank.items()}
        waits = own["waiting_ratio"] or 0.0
        table.add_row(
            rank, devices[rank], number(own["batch_samples"]), _seconds(own["compute_seconds"]),
            _seconds(own["input_seconds"]), Text(f"{100 * waits:.0f} %", "yellow" if waits >= 0.05 else ""),
            _seconds(own["bridge_seconds"]), _bar(own, wall),
        )  # fmt: skip
    if len(ranks) > MAX_RANKS:
        table.add_row("...", f"{len(ranks) - MAX_RANKS} more")
    return table


def _bar(own: dict[str, float | None], wall: float) -> Text:
    compute, load = own["compute_seconds"] or 0.0, own["input_seconds"] or 0.0
    step = max(wall, compute + load)
    if step <= 0:
        return Text()
    wait = (own["waiting_ratio"] or 0.0) * step
    exchange = max(0.0, (own["exposed_seconds"] or 0.0) - wait)
    bar, left, end = Text(), BAR, 0.0
    for seconds, (sign, style, _) in zip((compute, load, wait, exchange), _PARTS, strict=True):
        end += seconds
        letters = max(0, min(left, round(BAR * end / step) - (BAR - left)))
        bar.append(sign * letters, style)
        left -= letters
    return bar


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)


def _server(endpoint: Endpoint, sample: Sample) -> Text:
    def count(name: str) -> float:
        return sample.one(f"serve_{name}") or sample.one(f"serve_{name}_total") or 0.0

    rate = endpoint.rate("serve_inferences_total")
    facts = [f"server: {count('connections'):.0f} clients", f"{count('workers'):.0f} models",
             f"{count('waiting_inferences'):.0f} inferences wait", f"{count('inferences'):,.0f} done"]  # fmt: skip
    if rate is not None:
        facts.append(f"{number(rate)} per second")
    return Text("  " + ", ".join(facts))


def _session(endpoint: Endpoint, sample: Sample) -> Iterator[Text]:
    count = {name: sample.one(f"session_{name}_total") or 0.0 for name in
             ("inferences", "missed", "guarded", "up_bytes", "down_bytes", "joules")}  # fmt: skip
    facts = [f"session: {count['inferences']:,.0f} inferences"]
    if (rate := endpoint.rate("session_inferences_total")) is not None:
        facts.append(f"{number(rate)} per second")
    facts += [f"{answers:,.0f} {origin}" for origin, answers in sample.by("session_answers_total", "origin").items()
              if answers]  # fmt: skip
    yield Text("  " + ", ".join(facts))
    yield _session_link(sample)
    if not count["inferences"]:
        return
    yield Text(
        f"  missed deadlines: {count['missed']:,.0f}, finished alone: {count['guarded']:,.0f}",
        "yellow" if count["missed"] else "",
    )
    yield _session_latency(sample)
    for plan, predicted in sample.by("session_predicted_seconds", "plan").items():
        bound = sample.one("session_bound_seconds")
        yield Text(f"  plan {plan or '-'}: predicted {seconds_text(predicted)}"
                   + (f", bound {seconds_text(bound)}" if bound else ""))  # fmt: skip
    each = {name: count[name] / count["inferences"] for name in ("up_bytes", "down_bytes", "joules")}
    yield Text(f"  an inference: {number(each['up_bytes'] / 1e3)} kB up, {number(each['down_bytes'] / 1e3)} kB down, "
               f"{number(each['joules'])} J")  # fmt: skip
    yield from _session_last(sample)


def _session_link(sample: Sample) -> Text:
    up, down = sample.one("session_up_bytes_per_second"), sample.one("session_down_bytes_per_second")
    is_up = bool(sample.one("session_link_up"))
    text = "  link: " + ("the server can help" if is_up else "without the server")
    if up and down:
        text += f"; {8e-6 * up:.1f} Mbit/s up, {8e-6 * down:.1f} Mbit/s down"
    return Text(text, "" if is_up else "yellow")


def _session_latency(sample: Sample) -> Text:
    values = sample.by("session_latency_seconds", "quantile")
    named = (("0.5", "median"), ("0.95", "95 %"), ("0.99", "99 %"), ("1", "worst"))
    parts = [f"{name} {seconds_text(values[quantile])}" for quantile, name in named if quantile in values]
    alone = sample.one("session_local_seconds")
    return Text("  latency: " + ", ".join(parts) + (f"; alone {seconds_text(alone)}" if alone else ""))


def _session_last(sample: Sample) -> Iterator[Text]:
    whole = sample.one("session_last_seconds")
    if not whole:
        return
    line = Text(f"  last: {seconds_text(whole)} ")
    key = Text("  ")
    for sign, style, part, name in _SESSION_PARTS:
        seconds = sample.one(f"session_last_{part}_seconds") or 0.0
        line.append(sign * round(_SESSION_BAR * min(1.0, seconds / whole)), style)
        key.append(sign, style).append(f" {name}  ", "dim")
    yield line
    yield key
