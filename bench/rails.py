# SPDX-License-Identifier: Apache-2.0
"""One link over several shaped rails: its rate against their sum, one way and both, and with a rail cut. Needs root."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uneven
from atoll.bench.block import quantile
from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size
from bridge import rate_text
from compare import spread
from contenders import Place, TorchRanks
from library import oversubscribed
from netns import BURST_BYTES, ShapedLink, addresses
from pipelines_cases import COPIES
from results import Settings, say, table
from tcp_stream import payload_rate

TITLE = "one link over several shaped rails against the sum of their rates"
RAILS = (1, 2, 4)
RATES = (200_000_000, 1_000_000_000)
LARGE, BOUNDARY = 64 << 20, 8 << 20
ON_DEVICE = 2  # rails, at the highest rate
_CUT_SECONDS = 3.0  # longer than the time after which a stalled rail is given up


def measure(settings: Settings) -> dict[str, Any]:
    large = 4 << 20 if settings.quick else LARGE
    rows = []
    cuts = []
    rates = RATES[:1] if settings.quick else RATES
    for rate in rates:
        for rails in RAILS[1:2] if settings.quick else RAILS:
            with ShapedLink(rate, rails) as link, TorchRanks(link.places("AB"), ["atoll"], link.store) as ranks:
                rows.append(_measure_rails(settings, link, ranks, large))
                if rails > 1:
                    cuts.append(_cut(settings, link, ranks, large))
    with (
        ShapedLink(rates[-1], ON_DEVICE) as link,
        TorchRanks([_on_device(place) for place in link.places("AB")], ["atoll"], link.store) as ranks,
    ):
        rows.append(_measure_rails(settings, link, ranks, large, "sim"))
    return {"bytes": large, "boundary": BOUNDARY, "burst": BURST_BYTES, "rows": rows, "cuts": cuts}


def _on_device(place: Place) -> Place:
    more = (("ATOLL_DEVICE", "sim"), ("ATOLL_SIM_MEMORY", "1G"), ("ATOLL_SIM_BANDWIDTH", COPIES))
    return Place(place.prefix, (*place.environment, *more))


def _measure_rails(
    settings: Settings, link: ShapedLink, ranks: TorchRanks, large: int, device: str = "cpu"
) -> dict[str, Any]:
    """Measures, in every round, the plain streams, one rail after the other, and then the link. The burst that a shaper
    lets pass does not count as carried: each message finds every rail's bucket full, because it follows one in the
    other direction."""

    def shaped(size: int) -> float:
        return 1 - link.rails * BURST_BYTES / size

    def rate(operation: str, size: int, calls: int) -> float:
        return _bytes_per_second(ranks, Problem(operation, size, device="own"), calls)

    ratios: dict[str, list[float]] = {"large": [], "boundary": [], "both": [], "plain_both": []}
    streams = []
    for _ in range(settings.rounds(5)):
        seconds = 0.6 if settings.quick else 2.0
        alone = [payload_rate(link.prefix(1), addresses(i)[1], link.prefix(0), seconds) for i in range(link.rails)]
        total = sum(alone)
        streams.append(alone)
        ratios["plain_both"].append(_plain_both_ways(link, seconds) / (2 * total))
        one_way = rate("send", large, 2)
        ratios["large"].append(shaped(large) * one_way / total)
        ratios["boundary"].append(shaped(BOUNDARY) * rate("send", BOUNDARY, 4) / total)
        ratios["both"].append(rate("all_to_all", 2 * large, 2) / 2 / one_way)
    row = {
        "rate": link.rate, "rails": link.rails, "device": device, "late": oversubscribed(ranks), "streams": streams,
        "sum": spread([sum(each) for each in streams]),
    }  # fmt: skip
    row |= {name: {**spread(values), "rounds": values} for name, values in ratios.items()}
    row["link"] = _link_text(ranks)
    shares = ", ".join(f"{name} {quantile(values, 0.5):.1%}" for name, values in ratios.items())
    say(f"{rate_text(link.rate)} on each of {link.rails}, {device}: {shares}")
    return row


def _plain_both_ways(link: ShapedLink, seconds: float) -> float:
    """Returns the rate of plain streams in both directions over every rail, all at once."""

    def rate(of: tuple[int, int]) -> float:
        rail, to = of
        return payload_rate(link.prefix(to), addresses(rail)[to], link.prefix(1 - to), seconds)

    ways = [(rail, to) for rail in range(link.rails) for to in (0, 1)]
    with ThreadPoolExecutor(len(ways)) as pool:
        return sum(pool.map(rate, ways))


def _bytes_per_second(ranks: TorchRanks, problem: Problem, calls: int) -> float:
    """Returns the rate; a call of "send" is two messages, one after the other."""
    contender = ranks.contender("atoll", problem.device)
    contender.block(problem, 1, False)
    result = contender.block(problem, calls, False)
    if result.wrong:
        raise RuntimeError(f"{result.wrong} wrong elements in {problem}")
    messages = 2 * calls if problem.operation == "send" else calls
    return messages * result.bytes / result.seconds


def _link_text(ranks: TorchRanks) -> str:
    (text,) = ranks.ask("link_texts", backend="atoll")[0]["texts"].values()
    return str(text)


def _cut(settings: Settings, link: ShapedLink, ranks: TorchRanks, large: int) -> dict[str, Any]:
    """The last rail is cut while messages cross, and plugged in again; every element is checked."""
    problem = Problem("send", large)
    before = _bytes_per_second(ranks, problem, 2)
    calls = max(2, int(2 * _CUT_SECONDS * before / large / 2))
    cutter = threading.Timer(0.2, link.set_rail, (link.rails - 1, False))
    cutter.start()
    try:
        during = _bytes_per_second(ranks, problem, calls)
        down = _link_text(ranks)
    finally:
        cutter.join()
        link.set_rail(link.rails - 1, True)
    begin = time.monotonic()
    while f"over {link.rails} of {link.rails} rails" not in _link_text(ranks):
        if time.monotonic() - begin > 60:
            raise RuntimeError(f"the rail was not used again: {_link_text(ranks)}")
        _bytes_per_second(ranks, Problem("send", 1 << 20), 1)
    back = time.monotonic() - begin
    after = _bytes_per_second(ranks, problem, 2)
    say(f"cut of one of {link.rails}: {during / before:.0%} meanwhile, {after / before:.0%} after {back:.1f} s")
    return {"rate": link.rate, "rails": link.rails, "before": before, "during": during, "after": after,
            "back_s": back, "link_while_cut": down}  # fmt: skip


def _percent(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.1%} ({ratio['p10']:.1%} to {ratio['p90']:.1%})"


def report(document: dict[str, Any]) -> str:
    large, boundary = format_size(document["bytes"]), format_size(document["boundary"])
    text = (
        "Two ranks in two network namespaces with one, two or four veth pairs between them, each shaped by `tc tbf`; "
        "one link with as many rails (`ATOLL_RAILS`). The sum is that of one plain TCP stream per pair, measured one "
        f"after the other before every round. {large} and {boundary}: messages there and back, checked element by "
        f"element; a shaper lets {format_size(document['burst'])} pass at once, which are not counted for each message "
        f"and rail. *sim*: tensors of simulated devices, copied at {COPIES}B/s, all on this machine's processor. Both "
        "ways: so many bytes in each direction at once, against one way alone; the last column has the "
        "same of a plain TCP stream in each direction over every rail, against their sum.\n\n"
    )
    titles = ["each rail", "rails", "tensors on", "sum", f"{large}, of the sum", f"{boundary}, of the sum",
              "both ways, of one way", "plain streams both ways"]  # fmt: skip
    rows = []
    for row in document["rows"]:
        cells = [rate_text(row["rate"]), str(row["rails"]), row["device"], f"{row['sum']['median'] * 1e-6:.1f} MB/s"]
        names = ("large", "boundary", "both", "plain_both")
        rows.append([*cells, *(uneven.figure(row, _percent(row[name])) for name in names)])
    text += table(titles, rows)
    text += (
        "\nOne rail is cut while messages cross, and is back some seconds later. No element was lost or doubled; the "
        "rates are of whole messages, so that one of them holds the second in which nothing passed there.\n\n"
    )
    rows = []
    for cut in document["cuts"]:
        cells = [rate_text(cut["rate"]), str(cut["rails"])]
        cells += [f"{cut[name] * 1e-6:.1f} MB/s" for name in ("before", "during", "after")]
        rows.append([*cells, f"{cut['back_s']:.1f} s"])
    return text + table(["each rail", "rails", "before", "cut", "back again", "back after"], rows)
