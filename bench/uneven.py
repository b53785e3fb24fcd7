# SPDX-License-Identifier: Apache-2.0
"""Runs trainings over given ranks: from a configuration to a row of a result. Each rank runs uneven_training.py."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from compare import spread
from contenders import Place, TorchRanks

MODELLED = "On `sim`: modelled device time, real bytes."


@dataclass(frozen=True)
class Device:
    """One simulated device. Devices of one kind form one island."""

    kind: str
    speed: float  # 1: 10 Gflop/s
    table: str = "even"  # of operators' times (docs/simulated-device.md): as the papers' ratios, one factor for all


@dataclass(frozen=True)
class Run:
    """One training, the same on all ranks."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model
    data: str = "digits"
    folder: str = ""  # of cifar10
    batch: int = 256  # of all ranks
    steps: int = 20
    warm_up: int = 3  # steps that are not counted in medians
    policy: str = "minmax"
    form: str = "normalised"
    shares: list[float] | None = None
    backend: str = "atoll"  # of gradients; inner: the island's library alone
    interval: int = 0  # update_interval; 0: the first plan stays
    weighted: bool = True  # atoll.DataLoader; otherwise KAITIAN's sampler, which does not weight gradients
    norm: str = "local"  # of batches: local, merged, sync
    rate: float = 0.1  # of learning
    momentum: float = 0.9
    decay: float = 5e-4
    drops: list[int] = field(default_factory=list)  # steps at which the rate falls to a tenth
    tests: list[int] = field(default_factory=list)  # steps after which the accuracy is taken
    seed: int = 1
    slow_rank: int = -1
    slow_from: int = 0  # the first step in which that rank does additional work
    slow_passes: int = 0  # the additional forward passes in each step


def places(devices: Sequence[Device]) -> list[Place]:
    return [Place(environment=on_device(device)) for device in devices]


def on_device(device: Device) -> tuple[tuple[str, str], ...]:
    return (
        ("ATOLL_DEVICE", "sim"), ("ATOLL_ISLAND", device.kind), ("ATOLL_SIM_VENDOR", device.kind),
        ("ATOLL_SIM_SPEED", f"{device.speed:g}"), ("ATOLL_SIM_MODEL", device.table), ("ATOLL_SIM_MEMORY", "2G"),
    )  # fmt: skip


def train(ranks: TorchRanks, run: Run) -> dict[str, Any]:
    """Runs one training. Seconds of a step are those of the slowest rank, from the end of the previous step."""
    answers = ranks.ask("train", **asdict(run))
    steps = [answer["steps"] for answer in answers]  # by rank: [seconds, computing, samples] of each step
    seconds = [max(rank[0] for rank in step) for step in zip(*steps, strict=True)]
    compute = [max(rank[1] for rank in step) for step in zip(*steps, strict=True)]
    samples = [sum(rank[2] for rank in step) for step in zip(*steps, strict=True)]
    whole = whole_steps(samples, run.warm_up)
    return {
        "policy": run.policy,
        "batches": answers[0]["batches"],
        "plans": answers[0]["plans"],
        "predicted": answers[0]["predicted"],
        "steps_s": seconds,
        "compute_s": compute,
        "step": spread([seconds[index] for index in whole]),
        "compute": spread([compute[index] for index in whole]),
        "apart": spread([seconds[index] - compute[index] for index in whole]),
        "samples_per_s": sum(samples[index] for index in whole) / sum(seconds[index] for index in whole),
        "total_s": sum(seconds),
        "samples": sum(samples),
        "accuracy": answers[0]["accuracy"],  # [step, accuracy]
        "gradient_bytes": answers[0]["gradient_bytes"],
        "profiles": answers[0]["profiles"],
        "late": [rank for rank, answer in enumerate(answers) if answer["late"]],
    }


def whole_steps(samples: Sequence[int], warm_up: int) -> list[int]:
    """Returns the steps that count: not the first ones, nor the short one at the end of an epoch unless all are
    short."""
    later = list(range(min(warm_up, len(samples) - 1), len(samples)))
    usual = statistics.mode(samples[index] for index in later)
    return [index for index in later if samples[index] == usual]


def seconds_to(row: dict[str, Any], accuracy: float) -> float | None:
    """Returns the seconds of training until the accuracy was first reached, or None."""
    for step, value in row["accuracy"]:
        if value >= accuracy:
            return float(sum(row["steps_s"][:step]))
    return None


def figure(row: dict[str, Any], text: str) -> str:
    """Returns `text`, or why there is no figure."""
    return f"oversubscribed (ranks {', '.join(map(str, row['late']))})" if row["late"] else text


def counted(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows whose modelled times this machine could keep."""
    return [row for row in rows if not row["late"]]


def batches_text(row: dict[str, Any]) -> str:
    return " + ".join(map(str, row["batches"]))


def milliseconds(of: dict[str, float]) -> str:
    return f"{of['median'] * 1e3:.1f} ({of['p10'] * 1e3:.1f} to {of['p90'] * 1e3:.1f})"
