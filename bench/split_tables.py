# SPDX-License-Identifier: Apache-2.0
"""The pages of split_papers: tables like the papers', their own figures beside ours, and the bounds."""

from collections.abc import Iterator
from typing import Any

import split_claims
from results import table

Document = dict[str, Any]
SYSTEMS = {"local": "Local", "offload": "ALL", "cut": "DSCCS", "energy": "SPSO-GA", "tensor": "TP (DINA)",
           "intra-dp": "Intra-DP"}  # fmt: skip
NAMES = {"offload": "offload (ALL)", "cut": "cut (DSCCS)", "energy": "energy (SPSO-GA)", "tensor": "tensor (DINA)"}
ENVIRONMENTS = ("indoors", "outdoors")
DRAWN = ("nsdi25_VGG19_BN", "nsdi25_kapao", "nsdi25_agrnav", "nsdi25_DenseNet121")
VGG, KAPAO, AGRNAV = DRAWN[:3]
HEDGE = "offload, guarded"
# Milliseconds from simulations outside this library with the same data.
REFERENCE = [
    (VGG, "as sent", "outdoors", "offload", 749), (VGG, "as sent", "outdoors", HEDGE, 107),
    (VGG, "compact", "outdoors", HEDGE, 82), (VGG, "compact", "indoors", HEDGE, 33),
    (KAPAO, "as sent", "outdoors", "offload", 2767), (KAPAO, "as sent", "outdoors", HEDGE, 620),
    (AGRNAV, "as sent", "outdoors", "offload", 4549), (AGRNAV, "as sent", "outdoors", HEDGE, 533),
    (AGRNAV, "compact", "outdoors", HEDGE, 322), (AGRNAV, "compact", "indoors", HEDGE, 203),
]  # fmt: skip
OPENING = """\
**Simulated on published profiles**: times of operators on a robot (Jetson Xavier NX) and a server, as published with
the papers, over recorded links. No inference was run, halos are not in these profiles, messages have no latency, and
both directions share the link. An input comes every {period:g} s and has the link for itself. `compact` sends the
same input losslessly: a byte per pixel and channel, a bit per voxel. `guarded` begins local execution
in time for an answer that comes at most 4 ms, or 2 %, later than from the robot alone; it and `auto` are Atoll's,
`oracle` is `auto` that knows the trace.

[Latency](split_papers.md) · [energy](split_papers_energy.md) · [where the time goes](split_papers_breakdown.md) ·
[constant rates](split_papers_rates.md) · [forecasts](split_papers_forecasts.md)
"""
LATENCY = """
Milliseconds {environment}, mean ± std; in brackets the papers' own measurement. The bound holds for a link that always
has the mean rate; no plan undercuts it there.

"""
ENERGY = """
Joules of the robot for an inference {environment}, mean ± std and mean watts. Computing draws what was recorded for
the model's local inference, waiting 4.04 W, the radio 0.21 W more.

"""
RATES = """## At constant rates

Milliseconds. `most gain` is what the bound leaves over the best of local, offload and cut: no overlap of any kind saves
more.

"""
HEADLINE = """## The papers' headline, recomputed from their tables

What Intra-DP saves to the best of ALL, DSCCS and SPSO-GA in the same row; `to any` compares with the worst of them.

"""
STUDY = """## Which forecast serves best

Outdoors, each half of the record with what the other half taught; milliseconds, means of both halves, quantiles of the
worse one.

"""
TWICE = """## The same data, simulated twice

Milliseconds; `elsewhere` is the mean of a simulation that shares no code with this one.

"""


def latencies(document: Document) -> str:
    return _page(
        document, _reference(document), _latencies(document, "as sent"), _latencies(document, "compact"),
        _headline(document), _contradictions(), _left_out(document),
    )  # fmt: skip


def energy(document: Document) -> str:
    return _page(document, _energy(document))


def breakdown(document: Document) -> str:
    return _page(document, _breakdown(document))


def rates(document: Document) -> str:
    return _page(document, _bounds(document), _figures(document))


def forecasts(document: Document) -> str:
    return _page(document, _study(document))


def _page(document: Document, *parts: str) -> str:
    return "\n".join([OPENING.format(period=document["period"]), *parts])


def row_of(document: Document, profile: str, encoding: str, environment: str, replay: str) -> Document | None:
    """Returns the outcome of the inferences of one case."""
    for case in document["cases"]:
        if (case["profile"], case["encoding"]) == (profile, encoding):
            found: Document | None = case["replays"][environment]["rows"].get(replay)
            return found
    return None


def _ms(seconds: float) -> str:
    return _short(1e3 * seconds)


def _short(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 or value < 5e-4 else f"{value:.3g}"


def _with_std(spread: Document) -> str:
    return f"{_ms(spread['mean'])} ± {_ms(spread['std'])}"


def _paper(case: Document, system: str, environment: str, key: str) -> str:
    """Returns the papers' own figure, in italics."""
    paper = {"nsdi25": split_claims.INTRA, "eurosys25": split_claims.HYBRID}.get(case["source"], "")
    for where in (environment, "both"):
        for row in split_claims.published():
            is_here = (row["environment"], row["system"], row["paper"]) == (where, system, paper)
            if is_here and split_claims.PROFILES.get(row["model"]) == case["model"] and row[key] is not None:
                return f" *({row[key]:g})*"
    return ""


def _cases(document: Document, encoding: str) -> Iterator[Document]:
    return (case for case in document["cases"] if case["encoding"] == encoding)


def _reference(document: Document) -> str:
    rows = []
    for profile, encoding, environment, replay, expected in REFERENCE:
        if row := row_of(document, profile, encoding, environment, replay):
            seconds = row["seconds"]
            times = (_ms(seconds[name]) for name in ("mean", "p50", "p95", "p99"))
            rows.append([profile, encoding, environment, replay, f"{expected}", *times])
    titles = ["profile", "input", "link", "policy", "elsewhere", "mean", "p50", "p95", "p99"]
    return TWICE + table(titles, rows)


def _latencies(document: Document, encoding: str) -> str:
    text = f"## Latency, input {encoding}\n"
    for environment in ENVIRONMENTS:
        rows = []
        for case in _cases(document, encoding):
            of = case["replays"][environment]
            line = [case["profile"]]
            for name, row in of["rows"].items():
                paper = ""
                if encoding == "as sent" and name in SYSTEMS:
                    paper = _paper(case, SYSTEMS[name], environment, "latency_mean_ms")
                line.append(_with_std(row["seconds"]) + paper)
            rows.append([*line, _ms(of["bound"])])
        names = [NAMES.get(name, name) for name in _replays(document)]
        text += LATENCY.format(environment=environment)
        text += table(["profile", *names, "bound"], rows)
    return text


def _replays(document: Document) -> list[str]:
    return list(document["cases"][0]["replays"]["indoors"]["rows"])


def _energy(document: Document) -> str:
    text = "## Energy\n"
    for environment in ENVIRONMENTS:
        rows = []
        for case in document["cases"]:
            line = [case["profile"], case["encoding"], f"{case['watts']['compute_watts']:.4g}"]
            for name, row in case["replays"][environment]["rows"].items():
                paper = ""
                if case["encoding"] == "as sent" and name in SYSTEMS:
                    paper = _paper(case, SYSTEMS[name], environment, "energy_J_mean")
                line.append(
                    f"{_short(row['joules']['mean'])} ± {_short(row['joules']['std'])}, {row['watts']:.3g} W{paper}"
                )
            rows.append(line)
        names = [NAMES.get(name, name) for name in _replays(document)]
        text += ENERGY.format(environment=environment)
        text += table(["profile", "input", "W computing", *names], rows)
    return text


def _breakdown(document: Document) -> str:
    text = "## Where the time goes\n"
    for environment in ENVIRONMENTS:
        rows = []
        for case in _cases(document, "as sent"):
            line = [case["profile"]]
            for row in case["replays"][environment]["rows"].values():
                parts = [row["robot_busy"], row["link_busy"]["mean"], row["server_busy"]]
                share = row["link_busy"]["mean"] / row["seconds"]["mean"]
                line.append(" / ".join(_ms(part) for part in parts) + f", {share:.0%}")
            rows.append(line)
        names = [NAMES.get(name, name) for name in _replays(document)]
        text += f"\nMean milliseconds of robot / link / server {environment}, and the link's share of the latency.\n\n"
        text += table(["profile", *names], rows)
    return text


def _bounds(document: Document) -> str:
    rows = []
    for case in document["cases"]:
        for point in case["sensitivity"]:
            plans = point["seconds"]
            simple = min(plans[name] for name in ("local", "offload", "cut"))
            rate = f"{point['rate'] * 8e-6:.0f}"
            rows.append([case["profile"], case["encoding"], rate, *(_ms(plans[name]) for name in plans),
                         _ms(point["bound"]), f"{1 - point['bound'] / simple:.0%}"])  # fmt: skip
    names = document["cases"][0]["sensitivity"][0]["seconds"]
    return RATES + table(
        ["profile", "input", "Mbit/s", *(NAMES.get(each, each) for each in names), "bound", "most gain"], rows
    )


def _figures(document: Document) -> str:
    text = "## Latency at every cut, and by rate\n"
    for case in document["cases"]:
        if case["profile"] not in DRAWN:
            continue
        stem = f"split-{case['model'].lower()}-{case['encoding'].replace(' ', '-')}"
        text += f"\n![{case['model']}: cuts]({stem}-cuts.svg)\n![{case['model']}: rates]({stem}-rates.svg)\n"
    return text


def _headline(document: Document) -> str:
    spread = split_claims.gains(split_claims.published())
    found = split_claims.headline(spread)
    rows = [[name, f"{split_claims.CLAIMED[name]:g} %" if name in split_claims.CLAIMED else "-",
             f"{split_claims.LATER[name]:g} %" if name in split_claims.LATER else "-", f"{value:.1f} %"]
            for name, value in found.items()]  # fmt: skip
    text = HEADLINE
    text += table(["saved", "papers", "version of 2025", "from the tables"], rows)
    text += "\n" + table(["paper", "model", "link", "fastest other", "latency", "energy", "bound leaves", ""],
                         _forbidden(document, spread))  # fmt: skip
    return text


def _forbidden(document: Document, spread: list[Document]) -> Iterator[list[str]]:
    """Returns each gain beside the largest one that the bound allows for that model at the mean rate."""
    for gain in spread:
        model = split_claims.PROFILES.get(gain["model"])
        sources = ("nsdi25",) if gain["paper"] == split_claims.INTRA else ("eurosys25", "nsdi25")
        found = [case for source in sources for case in _cases(document, "as sent")
                 if (case["source"], case["model"]) == (source, model)]  # fmt: skip
        line = [gain["paper"], gain["model"], gain["environment"], gain["fastest"], f"{gain['latency']:.1%}",
                f"{gain['energy']:.1%}"]  # fmt: skip
        if not found:
            yield [*line, "no profile", ""]
            continue
        of = found[0]["replays"][gain["environment"]]
        leaves = 1 - of["bound"] / min(of["cut"], found[0]["robot_seconds"])
        verdict = "**more than any plan can save**" if gain["latency"] > leaves else "possible"
        yield [*line, f"{leaves:.1%} ({found[0]['profile']})", verdict]


def _contradictions() -> str:
    rows = split_claims.published()
    lines = [f"- {text}" for text in split_claims.contradictions(rows, split_claims.gains(rows))]
    return "## Where the tables contradict themselves\n\n" + "\n".join(lines) + "\n"


def _study(document: Document) -> str:
    rows = []
    for row in document["study"]:
        if row["forecast"] == "recent" and row["sees_every_bin"]:  # it has one bin, like `last`
            continue
        rows.append([row["profile"], row["encoding"], row["forecast"], _by(row), "every bin" if row["sees_every_bin"]
                     else "messages", "yes" if row["guard"] else "no",
                     *(_ms(row["seconds"][name]) for name in ("mean", "p50", "p95", "p99")),
                     f"{row['joules']:.3g}"])  # fmt: skip
    titles = ["profile", "input", "forecast", "by", "sees", "guard", "mean", "p50", "p95", "p99", "J"]
    return STUDY + "\n".join(_best(document["study"])) + "\n\n" + table(titles, rows)


def _by(row: Document) -> str:
    return f"{row['quantile']:g}" if row["quantile"] else "mean"


def _best(study: list[Document]) -> Iterator[str]:
    """Returns, for each model, the forecast from messages that has the smallest mean with a guard."""
    for case in dict.fromkeys((row["profile"], row["encoding"]) for row in study):
        order = sorted(
            (row for row in study if (row["profile"], row["encoding"]) == case and not row["sees_every_bin"]
             and row["guard"] and row["forecast"] != "oracle"),
            key=lambda row: row["seconds"]["mean"],
        )  # fmt: skip
        if not order:
            continue
        best, worst = order[0], order[-1]
        yield (
            f"- {case[0]}, input {case[1]}: of what messages show, with a guard, {best['forecast']} ({_by(best)}) is "
            f"best at {_ms(best['seconds']['mean'])} ms, {worst['forecast']} ({_by(worst)}) worst at "
            f"{_ms(worst['seconds']['mean'])} ms"
        )


def _left_out(document: Document) -> str:
    lines = [f"- {each['profile']}: {each['reason']}" for each in document["left_out"]]
    return "## Left out\n\n" + ("\n".join(lines) or "Nothing.") + "\n"
