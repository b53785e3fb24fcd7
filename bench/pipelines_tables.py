# SPDX-License-Identifier: Apache-2.0
"""The page and the plots of pipelines.json."""

from typing import Any

import pipelines_transfers
import plots
import uneven
from bridge import rate_text
from pipelines_cases import HEADS, PAPER, PLANNER, REPLICAS, TURNED, blocks_text
from pipelines_figures import apart, by, of_seconds, row_of
from pipelines_sets import FAST, GLOO, MIXED, SLOW
from results import table

Document = dict[str, Any]


def report(document: Document) -> str:
    return _intro(document) + "".join(_part(part, document) for part in document["parts"]) + _rest(document)


def _intro(document: Document) -> str:
    case, tokens = document["case"], document["tokens"]
    return (
        "Byte-level language models over the source of Python's standard library: LLaMA configurations of transformers "
        f"with random weights, width {case['width']}, samples of {tokens} bytes, {case['micro_batches']} micro-batches "
        f"of {case['micro']} samples in a step, 1F1B over two stages, AdamW. The vocabulary is larger than the 256 "
        "bytes, so that the head weighs as many blocks as in the paper's models. A rank has one compute thread; two "
        f"kinds of simulated devices, the fast one of speed {document['speed']:g}. {uneven.MODELLED} Two network "
        f"namespaces hold one kind each, with two links of {rate_text(document['rate'])} between them. Compare ratios "
        "with the paper's.\n\n"
        "Transports, as in the paper's figure 3: *global-gloo* is stock Gloo, with each tensor copied to the host as a "
        "whole and the host waiting; *dcbs* is Atoll over the first link; *dcbs+mpdt* uses both; *device-direct* is "
        "Atoll over UCX on TCP over the first link: messages go from device to device through rings of chunks, without "
        "a stop in the host's tensors. UCX finds the simulated devices' memory in the host's, and there is no RDMA "
        "here, so that device-direct cannot show what it does for the paper.\n\n"
        "All contenders have processes of their own that sleep while others are measured, and take turns in blocks of "
        f"{document['steps']} steps. Tokens per second are of whole iterations, medians of rounds with their 10th to "
        "90th percentile. *Passes* are without the optimizer, which is what the planner and the simulator speak of; "
        "the bound is the planner's, of as many pipelines as its own plan has there: no plan of so many over these "
        "devices is shorter, and it counts no transfers and divides items at will. Rows of *replicas* are two "
        "pipelines and stand against the bound of one, which they may pass: they are not filled and drained. *Off* is "
        "how far the simulated step is from the measured passes. The blocks of a stage are followed "
        "by its rank: in mixed rows rank 0 is the fast device.\n"
    )


def _part(part: Document, document: Document) -> str:
    pair = part["pair"]
    wanted = HEADS.get(pair["name"])
    of_paper = f" ({wanted:.1f} in the model)" if wanted else ""
    text = (
        f"\n## {pair['name']}: {pair['blocks']} blocks, devices {pair['slower']:g} : 1\n\nNorm and head weigh "
        f"{part['head']:.2f} blocks{of_paper}.\n\n![Tokens per second](pipelines-{plain(pair['name'])}.svg)\n\n"
    )
    text += _rows_table(part["rows"], pair["blocks"])
    for name, why in part["missing"].items():
        text += f"\n{name} did not start here: {why}.\n"
    return text + _beside_paper(part) + _float64(part)


def _rows_table(rows: list[Document], blocks: int) -> str:
    cells = []
    for row in rows:
        bound = of_seconds(row, "bound_s")
        cell = [row["layout"], row["transport"], row["split"], blocks_text(row["plan"], blocks)]
        cell.append(uneven.figure(row, rate(row["tokens_s"])))
        cell += [uneven.milliseconds(row["passes_s"]), percents(bound)]
        has = "simulated_s" in row
        cell += [f"{row['simulated_s'] * 1e3:.1f}", f"{apart(row):.1%}"] if has else ["", ""]
        cells.append(cell)
    titles = ["devices", "transport", "split", "blocks on rank", "tokens/s", "passes, ms", "of the bound",
              "simulated, ms", "off"]  # fmt: skip
    return table(titles, cells)


def rate(of: dict[str, float]) -> str:
    return f"{of['median']:.1f} ({of['p10']:.1f} to {of['p90']:.1f})"


def percents(of: dict[str, float] | None) -> str:
    return "" if of is None else f"{of['median']:.1%} ({of['p10']:.1%} to {of['p90']:.1%})"


def plain(name: str) -> str:
    return name.lower().replace(" ", "-")


def _beside_paper(part: Document) -> str:
    rows, pair = part["rows"], part["pair"]
    text = "\n### Beside the paper\n\nTokens per second by one another, round by round, all over dcbs.\n\n"
    ours = row_of(rows, MIXED, PLANNER)
    theirs = row_of(rows, MIXED, PAPER)
    cells = [
        ["mixed by fast-fast", f"{pair['of_fast']:.1%}", *_both(rows, ours, theirs, FAST)],
        ["mixed by slow-slow", f"{1 + pair['over_slow']:.1%}", *_both(rows, ours, theirs, SLOW)],
    ]
    text += table(["", "the paper", "all by the planner", "all by the paper's splits"], cells)
    turned, replicas = row_of(rows, MIXED, TURNED), row_of(rows, MIXED, REPLICAS)
    bad = by(turned, row_of(rows, SLOW, PAPER))
    if bad is not None:
        falls = "falls below" if bad["median"] < 1 else "does not fall below"
        text += (
            "\nThe paper warns that a bad split is slower than the slowest homogeneous pair. Its own split with the "
            f"stages the wrong way round {falls} slow-slow: {percents(bad)} of it.\n"
        )
    dp = by(replicas, ours)
    if dp is not None:
        text += (
            "\nThe paper mixes devices in pipelines only (its section 4.1). The same step with a whole replica on each "
            f"device, gradients summed over the link, has {percents(dp)} of the mixed pipeline's tokens/s.\n"
        )
    gloo = by(row_of(rows, MIXED, PLANNER, GLOO), ours)
    if gloo is not None:
        text += f"\nThe same split over global-gloo has {percents(gloo)} of what it has over dcbs.\n"
    return text


def _both(rows: list[Document], ours: Document | None, theirs: Document | None, layout: str) -> list[str]:
    return [percents(by(ours, row_of(rows, layout, PLANNER))), percents(by(theirs, row_of(rows, layout, PAPER)))]


def _float64(part: Document) -> str:
    steps = part["float64"][0]["steps"]
    text = f"\n### In float64\n\nThe largest relative difference of a loss to one process's in {steps} steps.\n\n"
    cells = [[row["transport"], row["split"], f"{row['relative']:.1e}"] for row in part["float64"]]
    return text + table(["transport", "split", "off"], cells)


def _rest(document: Document) -> str:
    text = (
        f"\n## Over a slow link\n\n{document['parts'][0]['pair']['name']} with the same split, over links of "
        f"{rate_text(document['slow_rate'])}. A boundary is cut into segments of at least 16 KiB for two links. The "
        "bound counts no transfers.\n\n"
    )
    cells = [
        [row["transport"], uneven.figure(row, rate(row["tokens_s"])), uneven.milliseconds(row["passes_s"]),
         percents(of_seconds(row, "bound_s"))]
        for row in document["slow_link"]
    ]  # fmt: skip
    text += table(["transport", "tokens/s", "passes, ms", "of the bound"], cells)
    text += pipelines_transfers.report(document["transfers"])
    square = document["square"]
    pair = square["pair"]
    text += (
        f"\n## Two pipelines of two stages\n\nTwo fast and two slow devices, {pair['slower']:g} : 1 and half as fast "
        f"as above, with {pair['blocks']} blocks: where the planner puts two pipelines, and both ways by hand, cut at "
        "the best place that is common to both pipelines. Ranks 0 and 1 are fast. In float64 losses are at most "
        f"{square['float64']['relative']:.1e} off one process in {square['float64']['steps']} steps.\n\n"
    )
    return text + _rows_table(square["rows"], pair["blocks"])


def plots_of(document: Document) -> dict[str, str]:
    """Returns the plots by name."""
    drawn = {}
    for part in document["parts"]:
        name = plain(part["pair"]["name"])
        drawn[f"pipelines-{name}"] = _bars(part)
    return drawn


def _bars(part: Document) -> str:
    """Draws bars as in the paper's figure 3: a group per set of devices and transport, a bar per split."""
    groups: dict[str, dict[str, float]] = {}
    for row in part["rows"]:
        if not row["late"]:
            group = row["layout"] if row["layout"] != MIXED else row["transport"]
            groups.setdefault(group, {})[row["split"]] = row["tokens_s"]["median"]
    return plots.bars(f"{part['pair']['name']}: tokens per second", "tokens/s", groups)
