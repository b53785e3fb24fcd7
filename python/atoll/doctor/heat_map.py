# SPDX-License-Identifier: Apache-2.0
"""The measured speed of links as coloured cells in a terminal and as a page."""

import math
from collections.abc import Mapping
from typing import Any

from rich.style import Style
from rich.text import Text

from atoll.report.links import rates
from atoll.report.page import page
from atoll.report.parts import BAD, GOOD, Sentence, heat, section, sentences, table

Document = dict[str, Any]
_BAD, _FAIR, _GOOD = (168, 50, 40), (134, 108, 20), (18, 112, 74)  # all dark enough for white text
_ALIKE = 1.25  # ratios up to this count as equal


def latencies(document: Document) -> dict[tuple[int, int], float]:
    """Returns the latencies in us, in both directions."""
    found = {}
    for pair in document["links"]:
        found[pair["a"], pair["b"]] = found[pair["b"], pair["a"]] = pair["latency_us"]
    return found


def goodness(value: float, all_values: Mapping[tuple[int, int], float], low_is_good: bool) -> float:
    """Returns 0 for the worst of all values to 1 for the best, on a logarithmic scale."""
    low, high = min(all_values.values()), max(all_values.values())
    if low <= 0 or high <= _ALIKE * low:
        return 1.0
    share = math.log(value / low) / math.log(high / low)
    return 1 - share if low_is_good else share


def cell(text: str, good: float) -> Text:
    """Returns the text on a colour from red (0) to green (1)."""
    first, second, share = (_BAD, _FAIR, 2 * good) if good < 0.5 else (_FAIR, _GOOD, 2 * good - 1)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return Text(f" {text}", Style.parse(f"white on #{red:02x}{green:02x}{blue:02x}"))


def html(document: Document) -> str:
    """Returns the page: the findings with their fixes, then the measurements of the links."""
    kind = BAD if document["problems"] or document["warnings"] else GOOD
    said = [Sentence(document["verdict"].removeprefix("Atoll: ").capitalize() + ".", kind)]
    said += [Sentence(f"{each['what']}. What to do: {each['fix']}.", BAD if each["level"] != "note" else "plain")
             for each in document["findings"]]  # fmt: skip
    body = f"<header><h1>Links of {len(document['ranks'])} ranks</h1></header>{sentences(said)}"
    if document["links"]:
        body += section("Heat map", *_maps(document))
        rows = [[f"{pair['a']}-{pair['b']}", pair["link"], pair["reason"], f"{pair['latency_us']:.1f}",
                 f"{pair['a_to_b']:.2f}", f"{pair['b_to_a']:.2f}"] for pair in document["links"]]  # fmt: skip
        columns = ("pair", "link", "why", "us", "GB/s there", "GB/s back")
        body += section("Links", table(columns, rows, "Each pair that was measured", numbers=False))
    ranks = [[str(each["rank"]), each["host"], each["device"], each["device_name"]] for each in document["ranks"]]
    if ranks:
        body += section("Ranks", table(("rank", "host", "device", "name"), ranks, "Who takes part", numbers=False))
    return page("Atoll: links", body)


def _maps(document: Document) -> list[str]:
    count = len(document["ranks"])
    names = [str(rank) for rank in range(count)]
    sizes = sorted({pair["bytes"] for pair in document["links"]})
    about = (
        f"Messages of {' or '.join(f'{size:,}' for size in sizes)} bytes through torch.distributed, from host memory."
    )
    delay, rate = latencies(document), rates(document)
    return [
        heat("Bandwidth", f"{about} The stronger the colour the faster.", names,
             [[rate.get((a, b)) for b in range(count)] for a in range(count)], "GB/s"),
        heat("Latency", "Half a round trip of 4 bytes. The stronger the colour the faster.", names,
             [[delay.get((a, b)) for b in range(count)] for a in range(count)], "us", dark_is_low=True),
    ]  # fmt: skip
