# SPDX-License-Identifier: Apache-2.0
"""The metrics of a split inference as lines that fit 80 columns."""

from collections.abc import Iterator

from rich.text import Text

from atoll.report.parts import number, seconds_text
from atoll.top.endpoint import Endpoint, Sample

BAR = 40  # columns
_PARTS = (("█", "blue", "computing", "computes here"), ("░", "bright_black", "waiting", "waits for the server"))


def session_lines(endpoint: Endpoint, sample: Sample) -> Iterator[Text]:
    count = {name: sample.one(f"session_{name}_total") or 0.0 for name in
             ("inferences", "missed", "guarded", "up_bytes", "down_bytes", "joules")}  # fmt: skip
    facts = [f"session: {count['inferences']:,.0f} inferences"]
    if (rate := endpoint.rate("session_inferences_total")) is not None:
        facts.append(f"{number(rate)} per second")
    facts += [f"{answers:,.0f} {origin}" for origin, answers in sample.by("session_answers_total", "origin").items()
              if answers]  # fmt: skip
    yield Text("  " + ", ".join(facts))
    yield _link(sample)
    if not count["inferences"]:
        return
    yield Text(
        f"  missed deadlines: {count['missed']:,.0f}, finished alone: {count['guarded']:,.0f}",
        "yellow" if count["missed"] else "",
    )
    yield _latency(sample)
    for plan, predicted in sample.by("session_predicted_seconds", "plan").items():
        bound = sample.one("session_bound_seconds")
        yield Text(f"  plan {plan or '-'}: predicted {seconds_text(predicted)}"
                   + (f", bound {seconds_text(bound)}" if bound else ""))  # fmt: skip
    each = {name: count[name] / count["inferences"] for name in ("up_bytes", "down_bytes", "joules")}
    yield Text(f"  an inference: {number(each['up_bytes'] / 1e3)} kB up, {number(each['down_bytes'] / 1e3)} kB down, "
               f"{number(each['joules'])} J")  # fmt: skip
    yield from _last(sample)


def _link(sample: Sample) -> Text:
    up, down = sample.one("session_up_bytes_per_second"), sample.one("session_down_bytes_per_second")
    is_up = bool(sample.one("session_link_up"))
    text = "  link: " + ("the server can help" if is_up else "without the server")
    if up and down:
        text += f"; {8e-6 * up:.1f} Mbit/s up, {8e-6 * down:.1f} Mbit/s down"
    return Text(text, "" if is_up else "yellow")


def _latency(sample: Sample) -> Text:
    values = sample.by("session_latency_seconds", "quantile")
    named = (("0.5", "median"), ("0.95", "95 %"), ("0.99", "99 %"), ("1", "worst"))
    parts = [f"{name} {seconds_text(values[quantile])}" for quantile, name in named if quantile in values]
    alone = sample.one("session_local_seconds")
    return Text("  latency: " + ", ".join(parts) + (f"; alone {seconds_text(alone)}" if alone else ""))


def _last(sample: Sample) -> Iterator[Text]:
    whole = sample.one("session_last_seconds")
    if not whole:
        return
    line = Text(f"  last: {seconds_text(whole)} ")
    key = Text("  ")
    for sign, style, part, name in _PARTS:
        seconds = sample.one(f"session_last_{part}_seconds") or 0.0
        line.append(sign * round(BAR * min(1.0, seconds / whole)), style)
        key.append(sign, style).append(f" {name}  ", "dim")
    yield line
    yield key
