# SPDX-License-Identifier: Apache-2.0
"""atoll.DataLoader: every sample once, and the gradients of one process, whatever the plan, workers and restarts."""

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import atoll
from client_ranks import on_layouts
from support import device, later
from training import CLASSES, FEATURES, check_close, check_equal_bits, network
from uneven_training import sgd, workers

SAMPLES, BATCH = 157, 24
EXACT = 1e-12
LAYOUTS = (later("AA"), "AAA", "ABAA", later("ab"), "aCb")
UNMEASURED = atoll.training.Settings(measure=False)


def dataset(samples: int = SAMPLES) -> TensorDataset:
    chance = torch.Generator().manual_seed(11)
    inputs = torch.randn(samples, FEATURES, generator=chance, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(CLASSES, (samples,), generator=chance), torch.arange(samples))


def wrapped() -> DistributedDataParallel:
    return DistributedDataParallel(network(place=device()), bucket_cap_mb=0.001)


def train_alone(epochs: int, seed: int, samples: int = SAMPLES, batch: int = BATCH) -> nn.Module:
    model, data = network(), dataset(samples)
    update = sgd(model.parameters())
    for epoch in range(epochs):
        order = torch.as_tensor(atoll.plan.permutation(len(data), seed, epoch))
        for first in range(0, len(data), batch):
            inputs, targets, _ = data[order[first : first + batch]]
            update.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            update.step()
    return model


def train(model: nn.Module, loader: atoll.DataLoader, epochs: int) -> list[list[int]]:
    """Trains; returns the numbers of the samples that counted, by epoch."""
    update = sgd(model.parameters())
    seen = []
    for _ in range(epochs):
        of_epoch: list[int] = []
        for inputs, targets, numbers in loader:
            if loader.weight:
                of_epoch += numbers.tolist()
            nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
            if loader.step_complete:
                update.step()
                update.zero_grad()
        seen.append(of_epoch)
    return seen


def on_all_ranks(own: Any) -> list[Any]:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def check_exactly_once(seen: list[list[int]], samples: int = SAMPLES) -> None:
    for of_epoch in zip(*on_all_ranks(seen), strict=True):
        assert sorted(itertools.chain(*of_epoch)) == list(range(samples))


# Proves E-1.
@on_layouts(*LAYOUTS)
def test_trains_as_one_process(rank: int, size: int) -> None:
    reference = train_alone(2, seed=4)
    shares = [1.0 + 2 * other for other in range(size)]
    for options in ({"policy": "equal"}, {"policy": "fixed", "shares": shares}, {"policy": "minmax"},
                    {"policy": "fixed", "shares": shares, "micro_batch": 2 + rank}):  # fmt: skip
        model = wrapped()
        loader = atoll.DataLoader(dataset(), BATCH, model=model, seed=4, settings=UNMEASURED, **options)
        check_exactly_once(train(model, loader, 2))
        check_equal_bits(model)
        check_close(model.module, reference, EXACT)


class Numbers(Dataset[Any]):
    def __init__(self, samples: int = SAMPLES) -> None:
        self._data = dataset(samples)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]


class Flow(IterableDataset[Any]):
    def __init__(self, skips: bool) -> None:
        self._data = dataset()
        if skips:
            self.skip_samples = lambda iterator, count: next(itertools.islice(iterator, count - 1, count))

    def __iter__(self) -> Any:
        return iter(self._data)


@on_layouts("AAA")
def test_workers_and_streams(rank: int, size: int) -> None:
    for source, number in ((Numbers(), 0), (Numbers(), 2), (Flow(False), 0), (Flow(True), 0)):
        model = wrapped()
        loader = atoll.DataLoader(source, BATCH, model=model, policy="fixed", shares=[3, 1, 2],
                                  samples=SAMPLES if isinstance(source, Flow) else None, **workers(number))  # fmt: skip
        check_exactly_once(train(model, loader, 2))
