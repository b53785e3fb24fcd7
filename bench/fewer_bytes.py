# SPDX-License-Identifier: Apache-2.0
"""Gradients and boundaries of pipelines as packed blocks: bytes on the wire, and the effect on the loss. Needs root."""

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from contenders import TorchRanks
from found import Document, Found
from netns import ShapedLink
from results import Settings, say, table

TITLE = "fewer bytes: losses of a byte model with packed gradients and boundaries"
UNTIMED = True  # so a busy machine makes no difference
RATE = 5_000_000_000
SEEDS = 5
STEPS = 400
EXACT, HALF = "float32", "bfloat16"
PACKED = ("int8", "fp8_e4m3", "fp8_e5m2")
NO_FEEDBACK = "int8, no feedback"
PIPELINES = "both"
KINDS = {
    "gradients": (EXACT, HALF, *PACKED, NO_FEEDBACK), "boundary": (EXACT, HALF, *PACKED), PIPELINES: (EXACT, *PACKED)
}  # fmt: skip
LAYOUTS = {"gradients": "AB", "boundary": "AB", PIPELINES: "ABBA"}
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 95 %
BYTES_LIMIT, LOSS_LIMIT = 0.55, 1.01


@dataclass(frozen=True)
class Run:
    """One training: two ranks as replicas (gradients) or as two stages (boundary), or four ranks as two pipelines of
    two stages (both)."""

    kind: str
    packing: str
    seed: int
    steps: int
    width: int = 64
    layers: int = 4
    batch: int = 32
    rate: float = 2e-3


def measure(settings: Settings) -> dict[str, Any]:
    seeds, steps = (2, 4) if settings.quick else (SEEDS, STEPS)
    rows = []
    for kind, packings in KINDS.items():
        layout = LAYOUTS[kind]
        with ShapedLink(RATE) as link, TorchRanks(link.places(layout), ["atoll"], link.store) as ranks:
            for packing in packings:
                for seed in range(1, seeds + 1):
                    run = Run(kind, packing, seed, steps)
                    answers = ranks.ask("fewer_bytes", **asdict(run))
                    # Ranks of one side count the same interface.
                    sent = [answers[layout.index(side)]["bytes"] / (steps - 1) for side in "AB"]
                    rows.append(asdict(run) | {"bytes": sent, "loss": answers[-1]["loss"]})
                say(f"{kind}, {packing}: {loss_text([row for row in rows if is_of(row, kind, packing)])}")
    return {"rows": rows, "seeds": seeds, "steps": steps, "loss_limit": LOSS_LIMIT, "bytes_limit": BYTES_LIMIT}


def is_of(row: dict[str, Any], kind: str, packing: str) -> bool:
    return bool(row["kind"] == kind and row["packing"] == packing)


def of(document: Document, kind: str, packing: str) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if is_of(row, kind, packing)]


def loss_text(rows: list[dict[str, Any]]) -> str:
    losses = [row["loss"] for row in rows]
    return f"{statistics.mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"


def bytes_ratio(document: Document, kind: str, packing: str) -> float:
    """Returns the bytes that both sides put on the wire divided by those of bfloat16, or by half of float32's where
    bfloat16 was not run."""

    def sent(packing: str) -> float:
        return sum(sum(row["bytes"]) for row in of(document, kind, packing))

    return sent(packing) / (sent(HALF) if HALF in KINDS[kind] else sent(EXACT) / 2)


def loss_ratio(document: Document, kind: str, packing: str) -> dict[str, float]:
    """Returns the loss divided by float32's with the same seed and order of samples: the mean and its 95 % interval
    (Student's t)."""
    exact = {row["seed"]: row["loss"] for row in of(document, kind, EXACT)}
    found = [row["loss"] / exact[row["seed"]] for row in of(document, kind, packing)]
    wide = STUDENT.get(len(found) - 1, 2.0) * statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    mean = statistics.mean(found)
    return {"mean": mean, "low": mean - wide, "high": mean + wide}


def bytes_of_half(document: Document) -> list[Found]:
    """Returns the ratios of bytes, for the aims."""
    found = []
    for kind in KINDS:
        value = bytes_ratio(document, kind, "int8")
        found.append(Found(value, value, value, kind))
    return found


def losses_of_exact(document: Document) -> list[Found]:
    found = []
    for kind in KINDS:
        ratio = loss_ratio(document, kind, "int8")
        found.append(Found(ratio["mean"], ratio["low"], ratio["high"], kind))
    return found


def report(document: dict[str, Any]) -> str:
    run = document["rows"][0]
    text = (
        f"A byte-level transformer ({run['layers']} layers of width {run['width']}, {run['batch']} samples of 32 bytes "
        f"per rank and step, Adam) learns the Python standard library's source for {document['steps']} steps, with "
        f"{document['seeds']} seeds. Two islands, in network namespaces joined by a veth pair. *Gradients*: a rank "
        "each, both hold the model, DistributedDataParallel. *Boundary*: a rank each, two stages, 1F1B, four "
        "micro-batches. *Both*: two ranks each, two pipelines of two stages whose boundaries and whose gradients cross "
        "between the islands, atoll.pipeline.Pipeline; bfloat16's bytes are there taken as half of float32's. "
        "Bytes are what the interfaces of both sides have sent, headers and acknowledgements included, per step after "
        "the first one. The loss is that of samples not used in training, after the last step; its ratio to float32's "
        f"is taken by seed, with its 95 % interval. The tolerance for int8 is a ratio of {document['loss_limit']}.\n\n"
    )
    rows = []
    for kind, packings in KINDS.items():
        for packing in packings:
            ratio = loss_ratio(document, kind, packing)
            sent = [sum(row["bytes"]) for row in of(document, kind, packing)]
            beside = "" if packing == EXACT else f"{ratio['mean']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})"
            rows.append([
                kind, packing, f"{statistics.mean(sent) / 1e3:.1f} kB", f"{bytes_ratio(document, kind, packing):.3f}",
                loss_text(of(document, kind, packing)), beside,
            ])  # fmt: skip
    titles = ["what", "as", "on the wire per step", "of bfloat16's", "loss, mean and range", "of float32's"]
    return text + table(titles, rows)
