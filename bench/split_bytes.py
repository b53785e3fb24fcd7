# SPDX-License-Identifier: Apache-2.0
"""Published models divided between a robot and a server: real sessions, TLS, TCP and bytes, modelled devices.

Each operator takes the time that was published for it, while the program goes on, as on a GPU; its tensors are bytes
that depend on all rows they are computed from, and every byte of every answer is compared. Over a recorded link all
policies infer at the same time, each over a link of its own that has the rates of the same moment, so that what else
the machine does meets all of them.

The overhead of an inference is what it took, from the call to the answer, less what the same plan takes by the
planner's own simulation with the operators' true times, over the true link at that moment, where bytes of inferences
before it may still be on their way: the time in which neither a machine computes nor the link carries what the plan
waits for. Nothing that delays an answer is left out of it, such as codecs, encryption, threads that wake up late, the
relay that stands for the link, and making and checking the modelled bytes. Headers of frames and TLS records count as
bytes on the link; the overhead that counts them as overhead is beside it. Inferences that the guard or a lost link took
from their plan have none, and are counted."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import split_papers
from atoll.infer.planning.trace import Trace
from atoll.infer.planning.watts import watts_of
from results import Settings, say, table
from split_stage import Programs, Robot, Stage, built, row_of

TITLE = "dividing published models with real bytes, modelled devices"
SEED = 1
WINDOW = 60.0  # seconds of a record that are used
DRAWN = 64  # windows, of which the one is taken whose rates are most like all
RATES = (10, 40, 100, 400, 1000)  # Mbit/s
OTHERS_SPEED = 8.0  # the factor by which devices and links are faster in cases that are not judged
FULL_OTHERS_SPEED = 10.0
COUNT, MAX_SECONDS, PAUSE = 40, 8.0, 0.01  # of inferences at a constant rate
PERIOD = 0.25  # seconds between inputs, or the smallest multiple in which a robot alone is done
BEYOND_LOCAL, BEYOND_SHARE = 0.004, 0.02  # by how much `auto` may take longer than the robot alone
UNGUARDED = {"hedge": "never", "patience": 120.0, "silence": 120.0}
POLICIES: dict[str, dict[str, Any]] = {
    "local": {"policy": "local"},
    "offload": {"policy": "offload", **UNGUARDED},
    "intra-dp": {"policy": "intra-dp", **UNGUARDED},
    "hybrid-parallel": {"policy": "hybrid-parallel", **UNGUARDED},
    "auto": {"policy": "auto", "hedge": "deadline"},
}
STEADY = ("offload", "auto")
VGG, KAPAO, AGRNAV = "nsdi25_VGG19_BN", "nsdi25_kapao", "nsdi25_agrnav"


@dataclass(frozen=True)
class Case:
    """A published model with one encoding of its input; `speed` divides its times, and multiplies the link's rates."""

    profile: str
    encoding: str
    speed: float = 1.0

    @property
    def path(self) -> Path:
        return split_papers.DATA / "profiles" / f"{self.profile}.json"

    def robot_seconds(self) -> float:
        return float(json.loads(self.path.read_text())["robot_sum_ms"]) / 1e3

    def task(self, link: dict[str, Any]) -> dict[str, Any]:
        """Returns a robot's task: the model and its true link."""
        model = split_papers.model_of(self.path, self.encoding)
        watts, _ = watts_of(str(split_papers.DATA / "power_from_logs.csv"), model.source, model.name)
        return {"profile": str(self.path), "input_bytes": model.input_bytes, "speed": self.speed, "watts": watts,
                "link": link, "seed": SEED}  # fmt: skip

    def deadline(self) -> float:
        """Returns a deadline slightly above the robot's own time, so that local execution begins nearly at once."""
        alone = self.robot_seconds() / self.speed
        return alone + max(BEYOND_LOCAL, BEYOND_SHARE * alone)

    def period(self) -> float:
        return PERIOD * math.ceil(1.05 * self.robot_seconds() / PERIOD) / self.speed


JUDGED = (Case(VGG, "compact"), Case(KAPAO, "as sent"), Case(AGRNAV, "compact"), Case(AGRNAV, "as sent"))


def others(speed: float) -> list[Case]:
    """Returns the cases of all other profiles that have the server's times, with their inputs as bytes or bits, and of
    VGG19 with its input as sent."""
    known = {case.profile for case in JUDGED}
    found = [Case(VGG, "as sent", speed)]
    for path in sorted((split_papers.DATA / "profiles").glob("*.json")):
        if path.stem in known or json.loads(path.read_text())["server_sum_ms"] == 0:
            continue
        encoding = "as sent" if split_papers.is_compact(path) else "compact"
        found.append(Case(path.stem, encoding, speed))
    return found


def window_of(record: Trace, seconds: float, seed: int) -> Trace:
    """Returns `seconds` of the record: of DRAWN random windows, the one whose distribution of rates is closest to that
    of the whole record."""
    bins = min(len(record.up), round(seconds / record.bin_seconds))
    dice = random.Random(seed)
    begins = [dice.randrange(len(record.up) - bins + 1) for _ in range(DRAWN)]
    whole = _quantiles(list(record.up))

    def distance(begin: int) -> float:
        part = _quantiles(list(record.up[begin : begin + bins]))
        return sum(abs(math.log(a) - math.log(b)) for a, b in zip(part, whole, strict=True))

    begin = min(begins, key=distance)
    down = record.down[begin : begin + bins] if record.down else ()
    return Trace(record.bin_seconds, list(record.up[begin : begin + bins]), list(down), record.gaps)


def _quantiles(rates: list[float]) -> list[float]:
    """Returns quantiles of the rates, of which none counts as less than 10 kbit/s."""
    ordered = sorted(max(rate, 1250.0) for rate in rates)
    return [ordered[min(len(ordered) - 1, place * len(ordered) // 20)] for place in range(21)]


def faster(record: Trace, speed: float) -> Trace:
    """Returns the record sped up by this factor."""
    return Trace(record.bin_seconds / speed, [rate * speed for rate in record.up],
                 [rate * speed for rate in record.down], record.gaps)  # fmt: skip


def measure(settings: Settings) -> dict[str, Any]:
    programs = built()
    seconds = None if settings.full else 4.0 if settings.quick else WINDOW
    judged = JUDGED[: 1 if settings.quick else None]
    cases = [*judged, *([] if settings.quick else others(FULL_OTHERS_SPEED if settings.full else OTHERS_SPEED))]
    rates = [
        row
        for case in judged
        if (case.profile, case.encoding) != (AGRNAV, "as sent")
        for rate in ([100] if settings.quick else RATES)
        for row in at_rate(programs, case, rate, 5 if settings.quick else COUNT)
    ]
    records = [over_records(programs, case, seconds) for case in cases]
    return {"rates": rates, "cases": records, "window": seconds, "full": settings.full, "seed": SEED}


def at_rate(programs: Programs, case: Case, rate: float, count: int = COUNT) -> list[dict[str, Any]]:
    """Measures a single robot over a link with a constant rate."""
    link = {"up": rate * 1e6 / 8, "half_duplex": True}
    rows = []
    with Stage(programs, [{"rate": link["up"], "half_duplex": True}]) as stage:
        for name in STEADY:
            task = {**case.task(link), **POLICIES[name], **UNGUARDED, "count": count, "seconds": MAX_SECONDS,
                    "pause": PAUSE, "warm_up": 2}  # fmt: skip
            (robot,) = stage.run([(0, task)])
            rows.append({"profile": case.profile, "encoding": case.encoding, "mbps": rate, "policy": name,
                         **row_of(robot)})  # fmt: skip
    done = rows[-1]
    say(f"{case.profile}, {case.encoding}, {rate} Mbit/s: {1e3 * done['seconds']['p50']:.1f} ms, of which overhead "
        f"{1e3 * done['overhead'].get('p50', math.nan):.2f} ms")  # fmt: skip
    return rows


def over_records(programs: Programs, case: Case, seconds: float | None) -> dict[str, Any]:
    """Measures all policies at once, each over a link of its own with the same rates: a window of the record, or all of
    it."""
    found: dict[str, Any] = {"profile": case.profile, "encoding": case.encoding, "speed": case.speed, "links": {}}
    for environment in split_papers.TRACES:
        record = split_papers.recorded(environment)
        part = record if seconds is None else window_of(record, seconds, SEED)
        rows = over_link(programs, case, part, tuple(POLICIES))
        mean = sum(part.up) / len(part.up)
        found["links"][environment] = {"mean": mean, "seconds": part.seconds, "rows": rows}
        times = (f"{name} {1e3 * case.speed * row['seconds']['mean']:.0f}" for name, row in rows.items())
        say(f"{case.profile}, {case.encoding}, {environment}: {', '.join(times)} ms")
    return found


def over_link(programs: Programs, case: Case, part: Trace, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Returns one row for each of these policies."""
    robots = robots_over(programs, case, part, names)
    return {name: row_of(robot) for name, robot in robots.items()}


def robots_over(programs: Programs, case: Case, part: Trace, names: tuple[str, ...]) -> dict[str, Robot]:
    scaled = faster(part, case.speed)
    # Until the record begins, which includes the time in which sessions connect, a link has its median rate.
    link = {"rate": scaled.median(), "half_duplex": True, "trace": scaled.request()}
    common = {
        **case.task({"up": scaled.median(), "half_duplex": True}), "trace": scaled.request(),
        "seconds": scaled.seconds, "period": case.period(), "warm_up": 3,
    }  # fmt: skip
    tasks = []
    for place, name in enumerate(names):
        task = {**common, **POLICIES[name]}
        if task.get("hedge") == "deadline":
            task["deadline"] = case.deadline()
        if name == "local":
            task["warm_up"] = 0  # the robot infers alone before it reports that it is ready
        tasks.append((place, task))
    with Stage(programs, [link] * len(names), turns=len(names)) as stage:
        return dict(zip(names, stage.run(tasks), strict=True))


def row_for(document: dict[str, Any], case: Case, environment: str, policy: str) -> dict[str, Any] | None:
    for found in document["cases"]:
        if (found["profile"], found["encoding"], found["speed"]) == (case.profile, case.encoding, case.speed):
            row: dict[str, Any] | None = found["links"][environment]["rows"].get(policy)
            return row
    return None


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """Only the quantiles that the page shows."""
    rates = [_quantiles_of(row) for row in document["rates"]]
    cases = [
        {**case, "links": {name: {**link, "rows": {each: _quantiles_of(row) for each, row in link["rows"].items()}}
                           for name, link in case["links"].items()}}
        for case in document["cases"]
    ]  # fmt: skip
    return {**{key: document[key] for key in ("window", "full", "seed")}, "rates": rates, "cases": cases}


def _quantiles_of(row: dict[str, Any]) -> dict[str, Any]:
    shown = {"seconds": ("mean", "p50", "p95", "p99"), "overhead": ("p50", "p99"), "joules": ("mean",)}
    left_out = {"robot", "up_bytes", "down_bytes"}
    if "mbps" in row:  # of a constant rate
        shown["with_framing"] = ("p50", "p99")
    else:
        left_out |= {"with_framing", "on_bytes", "plans"}
    facts = {key: value for key, value in row.items() if key not in left_out}
    return facts | {key: {name: row[key][name] for name in names if name in row[key]} for key, names in shown.items()}


def report(document: dict[str, Any]) -> str:
    part = "The whole records." if document["window"] is None else (
        f"Windows of {document['window']:g} s of each record: of {DRAWN} that seed {document['seed']} draws, the one "
        "whose rates are distributed most like all; `--full` takes the whole records, which takes hours."
    )  # fmt: skip
    text = (
        "**Real sessions, TLS, TCP and bytes; modelled devices**: each operator takes the time that was published for "
        "it on a robot and on a server, and its tensors are bytes that depend on every row they are computed from; "
        "every byte of every answer is compared. The link is a relay that carries each byte when a half-duplex link of "
        "that rate would have. `compact` sends the same input losslessly: a byte per pixel and channel, a bit per "
        f"voxel. {part}\n\n**Overhead**: what an inference took less what the same plan takes by the planner's "
        "simulation with the operators' true times over the true link at that moment. All that delays an answer "
        "counts: codecs, encryption, threads that wake up late, the relay, and making and checking the modelled bytes "
        "(`on bytes`, the robot's part). Headers of frames and TLS records are bytes on the link; `with framing` "
        "counts them as overhead too. Inferences that the guard or a lost link took from their plan have none.\n\n"
    )
    return text + _rates(document) + _records(document, True) + _records(document, False)


def _rates(document: dict[str, Any]) -> str:
    rows = []
    for row in document["rates"]:
        over, framing = row["overhead"], row["with_framing"]
        rows.append([
            row["profile"], row["encoding"], f"{row['mbps']:g}", row["policy"], _plans(row), f"{row['inferences']}",
            _ms(row["seconds"]["p50"]), _ms(over.get("p50")), _ms(over.get("p99")), _ms(framing.get("p50")),
            _ms(framing.get("p99")), _ms(row["on_bytes"]),
        ])  # fmt: skip
    titles = ["profile", "input", "Mbit/s", "policy", "plans", "inferences", "median ms", "overhead p50", "p99",
              "with framing p50", "p99", "on bytes"]  # fmt: skip
    return (
        "## Overhead at constant rates\n\nOne robot at a link that stays as it is. Nothing guards, `auto` neither: "
        "every inference goes by its plan to the end.\n\n" + table(titles, rows) + "\n"
    )


def _records(document: dict[str, Any], judged: bool) -> str:
    rows = []
    for case in document["cases"]:
        if (case["speed"] == 1) != judged:
            continue
        for environment, link in case["links"].items():
            for name, row in link["rows"].items():
                rows.append([case["profile"], case["encoding"], environment, name, *_cells(row, case["speed"])])
    titles = ["profile", "input", "link", "policy", "inferences", "mean ms", "p50", "p95", "p99", "J", "answers",
              "guarded", "links lost", "overhead p50", "p99", "of"]  # fmt: skip
    if not rows:
        return ""
    if judged:
        return (
            f"## Over recorded links\n\nAn input comes every {PERIOD:g} s, or every multiple of that in which a robot "
            "alone is done; one that comes late waits for the next. All policies infer at the same time, each over a "
            "link of its own with the rates of the same moment, and the server computes for all at once. `local`, "
            "`offload` and the papers' policies, which solve their problem on the exact model, have no guard, and "
            "a plan for the link as it is when the session connects; it is made again, 30 s later at the earliest, "
            "where latency or the ratio of both ways has become another. `auto` is Atoll's, with a deadline "
            f"{BEYOND_LOCAL * 1e3:g} ms, or {BEYOND_SHARE:.0%} where that is more, after the robot alone, and counts "
            "the guard's energy."
            "\n\n" + table(titles, rows) + "\n"
        )  # fmt: skip
    speed = next(case["speed"] for case in document["cases"] if case["speed"] != 1)
    return (
        f"## The other profiles\n\nDevices and links are {speed:g} times as fast, to save time; times and joules are "
        f"multiplied by that again, overheads are not, so that they weigh {speed:g} times as much in the times.\n\n"
        + table(titles, rows) + "\n"
    )  # fmt: skip


def _cells(row: dict[str, Any], speed: float) -> list[str]:
    names = ("mean", "p50", "p95", "p99")
    times = [_ms(speed * row["seconds"][name]) if row["seconds"] else "" for name in names]
    joules = f"{speed * row['joules']['mean']:.3g}" if row["joules"] else ""
    answers = ", ".join(f"{count} {name}" for name, count in sorted(row["origins"].items()))
    over = row["overhead"]
    return [str(row["inferences"]), *times, joules, answers, str(row["guarded"]), str(row["link_losses"]),
            _ms(over.get("p50")), _ms(over.get("p99")), str(row["clear"])]  # fmt: skip


def _plans(row: dict[str, Any]) -> str:
    return ", ".join(sorted(row["plans"], key=lambda name: -row["plans"][name]))


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    value = 1e3 * seconds
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.2f}"
