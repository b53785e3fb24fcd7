# SPDX-License-Identifier: Apache-2.0
"""DDP on one island: Atoll over its library against the library alone."""

from typing import Any

from atoll.bench.block import quantile
from contenders import TorchRanks
from devices_overhead import LIBRARIES, places
from intervals import median_interval
from results import Settings, say, table

TITLE = "DDP steps on one island: over its library, and over Atoll"
LAYERS, WIDTH, BATCH = 8, 512, 64
STEPS = 4  # in a block
LAUNCHES, ROUNDS = 12, 41  # of each launch
MODELLED = {
    "ATOLL_SIM_SPEED": "1",
    "ATOLL_SIM_MODEL": "even",
}  # a device of 10 Gflop/s, slower than any processor that plays it
NAMES = ("atoll", "inner")


def measure(settings: Settings) -> dict[str, Any]:
    libraries = ["simccl"] if settings.quick else [*LIBRARIES]
    return {"rows": [_measure(settings, library) for library in libraries]}


def _measure(settings: Settings, library: str) -> dict[str, Any]:
    model = {"layers": 2, "width": 64, "batch": 8} if settings.quick else model_of(LAYERS, WIDTH, BATCH)
    launches = []
    for turn in range(settings.rounds(LAUNCHES)):
        names = NAMES if turn % 2 == 0 else NAMES[::-1]  # whose model is made first
        launches.append(_launch(library, names, model, settings.rounds(ROUNDS)))
    ratio = median_interval([launch["ratio"] for launch in launches])
    say(f"DDP over {library}: {ratio['median']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})")
    steps = {name: median_interval([launch["step_s"][name] for launch in launches]) for name in NAMES}
    late = sorted({rank for launch in launches for rank in launch["late"]})
    return {"library": library, **model, "ratio": ratio, "step_s": steps, "launches": launches, "oversubscribed": late}


def _launch(library: str, names: tuple[str, ...], model: dict[str, int], rounds: int) -> dict[str, Any]:
    """Medians over rounds of one launch of the ranks."""
    device, environment = LIBRARIES[library]
    with TorchRanks(places(device, environment | MODELLED), list(NAMES)) as ranks:
        ranks.ask("training", kind="ddp", names=list(names), **model)
        samples = paired_blocks(ranks, names, rounds)
        differ = max(answer["relative"] for answer in ranks.ask("training_differ", names=list(names)))
        late = oversubscribed(ranks)
    if differ > 1e-5:
        raise RuntimeError(f"{library}: parameters of the two trainings differ by {differ:g} of the largest")
    ratios = [ours / alone for ours, alone in zip(samples["atoll"], samples["inner"], strict=True)]
    steps = {name: quantile(of_name, 0.5) / STEPS for name, of_name in samples.items()}
    return {"ratio": quantile(ratios, 0.5), "step_s": steps, "blocks_s": samples, "late": late}


def model_of(layers: int, width: int, batch: int) -> dict[str, int]:
    return {"layers": layers, "width": width, "batch": batch}


def paired_blocks(ranks: TorchRanks, names: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
    """Returns the slowest rank's seconds per block, by name; the order alternates from round to round."""

    def block(name: str) -> float:
        return max(float(answer["seconds"]) for answer in ranks.ask("training_block", name=name, steps=STEPS))

    samples: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        block(name)  # DDP rebuilds its buckets after the first step
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            samples[name].append(block(name))
    return samples


def oversubscribed(ranks: TorchRanks) -> list[int]:
    """The ranks whose modelled times this machine could not keep."""
    return [rank for rank, answer in enumerate(ranks.ask("oversubscribed")) if answer["late"]]


def late_text(late: list[int]) -> str:
    return f"no figure: oversubscribed (ranks {', '.join(map(str, late))})" if late else ""


def report(document: dict[str, Any]) -> str:
    rows = document["rows"]
    first = rows[0]
    text = (
        f"Stock `DistributedDataParallel` with plain SGD on {first['layers']} "
        f"layers of {first['width']} x {first['width']}, batch {first['batch']}, two ranks: the same model and data "
        f"over Atoll and over the library alone, in blocks of {STEPS} steps in turn; both end with the same "
        "parameters. The ratio is Atoll's time divided by the library's, round by round: the median of a launch of "
        f"the ranks ({ROUNDS} rounds), and of {LAUNCHES} launches the median and its 95 % interval: where the kernel "
        "puts the threads of a launch favours one or the other until its end. On `sim`: modelled device time, real "
        "bytes.\n\n"
    )
    cells = []
    for row in rows:
        ratio, steps = row["ratio"], row["step_s"]
        shown = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        times = [f"{steps[name]['median'] * 1e3:.2f} ms" for name in NAMES]
        cells.append([row["library"], *times, late_text(row["oversubscribed"]) or shown])
    return text + table(["library", "atoll over it, one step", "alone", "ratio"], cells)
