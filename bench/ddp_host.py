# SPDX-License-Identifier: Apache-2.0
"""DDP on one host: steps with buckets that the ranks use where they lie, with ordinary buckets, and over Gloo."""

from typing import Any

from compare import spread
from contenders import Place, TorchRanks
from results import Settings, ratio_text, say, table

TITLE = "steps of DDP on one host"
LAYERS, WIDTH, BATCH = 24, 1024, 16  # 25 million parameters
ARENA, PRIVATE, GLOO = "atoll", "atoll, ordinary memory", "gloo"


def measure(settings: Settings) -> dict[str, Any]:
    layers, width = (4, 128) if settings.quick else (LAYERS, WIDTH)
    rows = [_measure(settings, ranks, layers, width) for ranks in ((2,) if settings.quick else (2, 4))]
    return {"layers": layers, "width": width, "batch": BATCH, "rows": rows}


def _measure(settings: Settings, count: int, layers: int, width: int) -> dict[str, Any]:
    ordinary = Place(environment=(("DDP_DISABLE_COMM_MEM", "1"),))
    with (
        TorchRanks([Place()] * count, ["atoll"]) as lending,
        TorchRanks([ordinary] * count, ["atoll", "gloo"]) as others,
    ):
        contenders = {ARENA: (lending, "atoll"), PRIVATE: (others, "atoll"), GLOO: (others, "gloo")}
        for ranks in (lending, others):
            ranks.ask("ddp_model", layers=layers, width=width)
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for turn in range(settings.rounds(15) + 2):
            for name, (ranks, backend) in contenders.items():
                together, alone = (_step(ranks, backend, communicate) for communicate in (True, False))
                if turn >= 2:  # DDP rebuilds its buckets after the first step
                    samples[name].append({"together_s": together, "alone_s": alone})
    found = {
        name: {
            "step_s": spread([sample["together_s"] for sample in of_one]),
            "of_other": spread(
                [
                    other["together_s"] / sample["together_s"]
                    for other, sample in zip(of_one, samples[ARENA], strict=True)
                ]
            ),
            "exposed_s": spread([sample["together_s"] - sample["alone_s"] for sample in of_one]),
        }
        for name, of_one in samples.items()
    }
    for name, figures in found.items():
        say(f"{count} ranks, {name}: a step of {figures['step_s']['median'] * 1e3:.0f} ms")
    return {"ranks": count, "found": found, "rounds": samples}


def _step(ranks: TorchRanks, backend: str, communicate: bool) -> float:
    answers = ranks.ask("ddp_step", backend=backend, batch=BATCH, communicate=communicate)
    return max(float(answer["step_s"]) for answer in answers)


def report(document: dict[str, Any]) -> str:
    layers, width = document["layers"], document["width"]
    text = (
        f"Stock `DistributedDataParallel` with stock buckets on {layers} layers of {width} x {width} "
        f"({layers * width * width / 1e6:.1f} million parameters), {document['batch']} samples a rank. With `atoll` "
        "the buckets are in memory that the ranks of a host use where it lies ([ranks on one host](../one-"
        "host.md)); with ordinary memory `DDP_DISABLE_COMM_MEM=1` is set. Exposed is the time of a step less "
        "that of the same step without communication (`no_sync`). The contenders take turns; medians, in "
        "brackets the 10th to 90th percentile.\n\n"
    )
    titles = ["ranks", "backend", "step", "exposed", "step / step of atoll"]
    rows = []
    for row in document["rows"]:
        for name, found in row["found"].items():
            step, exposed = ({key: value * 1e3 for key, value in found[of].items()} for of in ("step_s", "exposed_s"))
            cells = [row["ranks"], name, f"{step['median']:.1f} ms ({step['p10']:.1f} to {step['p90']:.1f})"]
            cells += [f"{exposed['median']:.1f} ms ({exposed['p10']:.1f} to {exposed['p90']:.1f})"]
            rows.append([str(cell) for cell in cells] + [ratio_text(found["of_other"])])
    return text + table(titles, rows)
