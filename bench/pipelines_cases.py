# SPDX-License-Identifier: Apache-2.0
"""The models that pipelines.py trains, which are the paper's two scaled down, and how they are divided."""

from dataclasses import dataclass
from typing import Any

SPEED = 0.5  # of the fast device, 1: 10 Gflop/s. A step must leave half of each core free to simulate it
COPIES = "1G"  # bytes per second between a device and its host: as PCIe 4 x16 beside 25 Gbit/s Ethernet
RATE, SLOW_RATE = 1_000_000_000, 50_000_000  # bits per second of each of two rails
BURST = "8kb"  # less than the bytes of a boundary, so that all boundaries are shaped
RAILS = 2
PLANNER, EQUAL, PAPER, TURNED, REPLICAS = "the planner's", "equal", "the paper's", "the paper's, turned", "replicas"
FIFTEEN = "15-13"


@dataclass(frozen=True)
class Case:
    """One training, the same on all ranks."""

    blocks: int
    vocabulary: int  # 256 of them occur
    plan: Any = "auto"  # of atoll.pipeline.Pipeline
    micro_batches: int = 4  # of each pipeline, on average
    replicas: int = 1
    dtype: str = "float32"
    width: int = 32
    micro: int = 8  # samples of a micro-batch
    rate: float = 2e-3  # of learning
    seed: int = 1

    @property
    def samples(self) -> int:
        """The samples of a step."""
        return self.micro * self.micro_batches * self.replicas


@dataclass(frozen=True)
class Pair:
    """One of the paper's two pairs of devices, with the model that it trained there. A split is the number of blocks on
    the first and on the second of two stages; the first stage is on the fast device, norm and head belong to the
    second."""

    name: str
    blocks: int
    vocabulary: int  # so large that the head weighs as many blocks as in the paper's model
    slower: float  # how many times as long the slow device takes
    split: tuple[int, int]  # the paper's over unlike devices
    alike: tuple[int, int]  # the paper's over equal ones
    of_fast: float  # the paper's throughput over unlike devices, by that of two fast ones
    over_slow: float  # by that of two slow ones, minus 1

    def case(self, plan: Any = "auto", **more: Any) -> Case:
        return Case(**{"blocks": self.blocks, "vocabulary": self.vocabulary, "plan": plan, **more})

    @property
    def equal(self) -> tuple[int, int]:
        return self.blocks // 2, self.blocks - self.blocks // 2

    def splits(self) -> dict[str, tuple[int, int]]:
        """Returns the splits over unlike devices."""
        found = {EQUAL: self.equal}
        if self.alike != self.equal:
            found[f"{self.alike[0]}-{self.alike[1]}"] = self.alike
        return {**found, PAPER: self.split}


# LLaMA-3-8B: the head has 525 M parameters, a block 218 M. Qwen2-7B: 545 M and 233 M.
PAIRS = (
    Pair("LLaMA-8B", 32, 1536, 1.0275, (17, 15), (16, 16), 0.982, 0.009),
    Pair("Qwen2-7B", 28, 1504, 1.083, (16, 12), (15, 13), 0.944, 0.023),
)
HEADS = {"LLaMA-8B": 525 / 218, "Qwen2-7B": 545 / 233}  # in blocks
QUICK = Pair("LLaMA-8B", 4, 300, 1.0275, (3, 1), (2, 2), 0.982, 0.009)
SQUARE = Pair("2 x 2", 16, 1536, 1.083, (8, 8), (8, 8), 0.0, 0.0)
QUICK_SQUARE = Pair("2 x 2", 4, 300, 1.083, (2, 2), (2, 2), 0.0, 0.0)


def items(blocks: int) -> int:
    """Returns the number of items of the model: embedding, blocks, norm, head."""
    return blocks + 3


def cut_plan(lines: list[list[int]], cut: int, blocks: int, micro_batches: int) -> dict[str, Any]:
    """Returns a plan of pipelines with two stages each on these ranks; the second stage begins with item `cut`."""
    return {
        "pipes": [
            {"stages": [_stage(0, cut, first), _stage(cut, items(blocks), second)], "micro_batches": micro_batches}
            for first, second in lines
        ]
    }


def _stage(first: int, last: int, rank: int) -> dict[str, Any]:
    return {"first": first, "last": last, "rank": rank, "recompute": False}


def blocks_text(plan: dict[str, Any], blocks: int) -> str:
    """Returns the blocks of each stage and its rank, such as 17 on 1 + 15 on 0, for one pipeline after the other."""

    def of(stage: dict[str, Any]) -> int:
        return max(0, min(stage["last"], blocks + 1) - max(stage["first"], 1))

    return "; ".join(
        " + ".join(f"{of(stage)} on {stage['rank']}" for stage in pipe["stages"]) for pipe in plan["pipes"]
    )
