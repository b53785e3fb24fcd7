# SPDX-License-Identifier: Apache-2.0
"""The steps of `make gpu` in order of importance: what each runs, its expected time and its limit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT

PROGRAMS = ROOT / "bench/gpu"
BUILD_SECONDS = 95  # expected, on 16 cores: 19 minutes of processor time
MIN_LIMIT = 60.0  # seconds: the smallest limit of a step
PATIENCE = 2.5  # a step is ended after this multiple of its expected time


@dataclass(frozen=True)
class Step:
    """One program under bench/gpu with its arguments. `expected` is in seconds, with one H100 and 16 cores."""

    name: str
    what: str
    program: str
    arguments: tuple[str, ...]
    expected: float

    def limit(self, slower: float = 1.0) -> float:
        """Returns the seconds after which the step is ended on a machine that is slower by that factor."""
        return max(MIN_LIMIT, PATIENCE * self.expected) * slower

    @property
    def path(self) -> Path:
        return PROGRAMS / self.program


STEPS = (
    Step("groups-1+1", "one device and one CPU: all operations, reductions and types", "groups.py", ("D C",), 20),
    Step("groups-1+3", "one device and three CPUs: the same", "groups.py", ("D C C C",), 20),
    Step("one-card", "two islands on one card: the same", "groups.py", ("D D",), 15),
    Step("killed", "a killed rank is an error on the others within seconds", "killed.py", (), 15),
    Step("overhead", "a call through Atoll against the vendor's library alone", "overhead.py", (), 20),
    Step("staging", "device to CPU and back against pinned copies", "staging.py", (), 25),
    Step("exact", "training against one process with the same batch, float64", "exact.py", (), 30),
    Step("training", "DDP and FSDP2 over the device and the CPU, against the device alone", "trained.py", (), 40),
    Step("split-resnet152", "split inference: ResNet152 over four links", "split.py", ("resnet152",), 95),
    Step("split-vgg19", "split inference: VGG19 over one link", "split.py", ("vgg19",), 35),
    Step("split-detector", "split inference: a detector over one link", "split.py", ("detector",), 35),
    Step("split-vit", "split inference: ViT-B/16 over one link", "split.py", ("vit",), 35),
    Step("pair", "a pipeline of device and CPU, and messages in device memory over UCX", "pair.py", (), 35),
)
NAMES = tuple(step.name for step in STEPS)


def chosen(only: Sequence[str], skipped: Sequence[str]) -> list[Step]:
    """Returns the requested steps, in order of importance. Raises ValueError for an unknown name."""
    for name in (*only, *skipped):
        if name not in NAMES:
            raise ValueError(f"there is no step {name!r}: choose from {', '.join(NAMES)}")
    return [step for step in STEPS if (not only or step.name in only) and step.name not in skipped]


def fitting(steps: Iterable[Step], seconds: float | None, slower: float = 1.0) -> list[Step]:
    """Returns the steps whose expected times fit into `seconds`, chosen in order of importance."""
    fits: list[Step] = []
    for step in steps:
        needed = step.expected * slower
        if seconds is None or needed <= seconds:
            fits.append(step)
            seconds = None if seconds is None else seconds - needed
    return fits
