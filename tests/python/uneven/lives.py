# SPDX-License-Identifier: Apache-2.0
"""Trainings in several lives: each ends after some steps, normally or killed, and the next continues from the saved
state with other ranks, plans and workers. The samples of each step are recorded, and those that count are added up."""

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atoll
from test_following import Paced
from uneven_training import workers

EPOCHS, SAMPLES, BATCH, SEED = 2, 301, 16, 4
LONGEST = 11  # the most steps of a life that ends early: three such lives are shorter than the training
POINTS = ("before", "forward", "backward", "step")


@dataclass(frozen=True)
class Life:
    """One run of a training."""

    ranks: int
    workers: int
    is_replayed: bool
    """Whether its plans are given, instead of following random times."""
    seed: int
    ends: str
    """How it ends: "stop", "kill", or "done" with the training."""
    after: int = 0
    """The number of its own steps after which it ends."""
    victim: int = 0
    point: str = POINTS[0]
    save_every: int = 1


def random_lives(seed: int) -> list[Life]:
    """Each number of ranks from 1 to 4 comes once, and at least one rank is killed."""
    chance = random.Random(seed)
    ends = [*chance.choice([("kill", "kill", "stop"), ("kill", "stop", "kill"), ("stop", "kill", "kill")]), "done"]
    replayed = chance.sample([True, True, False, False], 4)
    lives = []
    for number, ranks in enumerate(chance.sample(range(1, 5), 4)):
        lives.append(
            Life(ranks, chance.choice([0, 2]), replayed[number], chance.randrange(10**6), ends[number],
                 chance.randint(3, LONGEST), chance.randrange(ranks), chance.choice(POINTS), chance.randint(1, 3))
        )  # fmt: skip
    return lives


def random_batches(ranks: int, total: int, chance: random.Random) -> list[int]:
    """Returns batches that add up to the total; some may be 0."""
    cuts = sorted(chance.randint(0, total) for _ in range(ranks - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, total], strict=True)]


def random_plans(ranks: int, total: int, steps: int, chance: random.Random) -> list[dict[str, Any]]:
    """Returns plans for Settings(replay=...)."""
    changes = [0, *sorted(chance.sample(range(1, steps), steps // 3))]
    return [{"step": step, "batches": random_batches(ranks, total, chance)} for step in changes]


def random_pace(seed: int) -> Any:
    """Returns a pace for Paced: a rank's speed changes every third step."""
    return lambda rank, step: 1e-3 * random.Random(f"{seed} {rank} {step // 3}").choice([1, 2, 5])


def make_loader(life: Life, rank: int, dataset: Any, model: Any) -> atoll.DataLoader:
    chance = random.Random(life.seed)
    steps = EPOCHS * -(-SAMPLES // BATCH)
    replay = random_plans(life.ranks, BATCH, steps, chance) if life.is_replayed else None
    settings = atoll.training.Settings(measure=False, update_interval=chance.randint(1, 2), patience=1, replay=replay,
                              watch=atoll.training.Watch(live=False))  # fmt: skip
    part = random.Random(life.seed + rank).choice([None, 2, 5])
    loader = atoll.DataLoader(dataset, BATCH, model=model, seed=SEED, micro_batch=part, settings=settings,
                              **workers(life.workers))  # fmt: skip
    Paced(rank, random_pace(life.seed)).put_into(loader)
    return loader


class Record:
    """Records the samples of one rank in one life. Lines are in the file before their step is computed, so that no
    line is lost if the process is killed."""

    def __init__(self, folder: Path, life: int, rank: int) -> None:
        self._file = open(folder / f"{life}-{rank}.seen", "a", buffering=1)  # noqa: SIM115 - as long as the process

    def take(self, loader: atoll.DataLoader, numbers: list[int]) -> None:
        state = loader.state_dict()
        step = state["steps"] + (0 if loader.step_complete else 1)
        line = [state["epoch"], step, numbers if loader.weight else []]
        os.write(self._file.fileno(), (json.dumps(line) + "\n").encode())


def kept(folder: Path, starts: list[int]) -> dict[int, list[int]]:
    """Returns the numbers of all samples, by epoch, whose step precedes the state from which the next life started.
    `starts`: the steps done when each life started."""
    found: dict[int, list[int]] = {}
    for life, first in enumerate(starts):
        last = starts[life + 1] if life + 1 < len(starts) else None
        for file in folder.glob(f"{life}-*.seen"):
            for line in file.read_text().splitlines():
                epoch, step, numbers = json.loads(line)
                if step > first and (last is None or step <= last):
                    found.setdefault(epoch, []).extend(numbers)
    return found


def plans_of(folder: Path, life: int, ranks: int) -> set[tuple[int, ...]]:
    """Returns how the ranks of a life divided its steps."""
    sizes: dict[int, list[int]] = {}
    for rank in range(ranks):
        for line in (folder / f"{life}-{rank}.seen").read_text().splitlines():
            _, step, numbers = json.loads(line)
            sizes.setdefault(step, [0] * ranks)[rank] += len(numbers)
    return {tuple(cut) for cut in sizes.values() if sum(cut) == BATCH}
