# SPDX-License-Identifier: Apache-2.0
"""Elements that are not samples, layers that communicate in forward passes, restarts on other ranks."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import atoll
from client_ranks import on_layouts
from support import device, later, warnings_of_plans
from test_loader import BATCH, EXACT, SAMPLES, UNMEASURED, dataset, on_all_ranks, train, train_alone, wrapped
from training import CLASSES, FEATURES, check_close, network
from uneven_training import sgd

TOKENS, IGNORED = 6, -100


def sentences() -> TensorDataset:
    """Returns sentences in which the labels of most tokens are masked, and in some samples all."""
    chance = torch.Generator().manual_seed(12)
    inputs = torch.randn(SAMPLES, TOKENS, FEATURES, generator=chance, dtype=torch.float64)
    labels = torch.randint(CLASSES, (SAMPLES, TOKENS), generator=chance)
    labels[torch.rand(SAMPLES, TOKENS, generator=chance) < 0.7] = IGNORED
    return TensorDataset(inputs, labels)


def token_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over valid tokens, which is NaN without any."""
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def valid_tokens(batch: list[torch.Tensor]) -> int:
    return int((batch[1] != IGNORED).sum())


@on_layouts(later("AA"), "AAA", "aCb")
def test_weights_by_valid_tokens(rank: int, size: int) -> None:
    alone, data = network(), sentences()
    update = sgd(alone.parameters())
    order = atoll.plan.permutation(SAMPLES, 0, 0)
    losses = []
    for first in range(0, SAMPLES, BATCH):
        update.zero_grad()
        loss = token_loss(alone, *data[order[first : first + BATCH]])
        loss.backward()
        update.step()
        losses.append(loss.item())
    for limit in (None, 2):
        model = wrapped()
        update = sgd(model.parameters())
        loader = atoll.DataLoader(data, BATCH, model=model, policy="fixed", shares=[1, 4, 2][:size], micro_batch=limit,
                                  elements=valid_tokens, settings=UNMEASURED)  # fmt: skip
        mine = []
        for inputs, labels in loader:
            loss = token_loss(model, inputs.to(device()), labels.to(device()))
            loss.backward()
            if limit is None:
                mine.append(loader.mean(loss).item())
            if loader.step_complete:
                update.step()
                update.zero_grad()
        check_close(model.module, alone, EXACT)
        assert limit or torch.allclose(torch.tensor(mine), torch.tensor(losses))


@on_layouts("AA", "ab")
def test_a_step_without_any_element(rank: int, size: int) -> None:
    """The error comes before the optimizer would step with zero gradients."""
    data = sentences()
    data.tensors[1][atoll.plan.permutation(SAMPLES, 0, 0)[BATCH : 2 * BATCH]] = IGNORED

    def steps(limit: int | None, done: list[bool]) -> None:
        model = wrapped()
        loader = atoll.DataLoader(data, BATCH, model=model, policy="equal", micro_batch=limit, elements=valid_tokens,
                                  settings=UNMEASURED)  # fmt: skip
        for inputs, labels in loader:
            token_loss(model, inputs.to(device()), labels.to(device())).backward()
            done.append(loader.step_complete)

    for limit in (None, 5):
        done: list[bool] = []
        with pytest.raises(ValueError, match="no rank counts any elements in this step: remove such samples"):
            steps(limit, done)
        assert sum(done) == 1


@on_layouts(later("AAA"), "aCb")
def test_fully_sharded_with_micro_batches(rank: int, size: int) -> None:
    model = network(place=device())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="fixed", shares=[1, 5, 2], micro_batch=3 + rank,
                              seed=4, settings=UNMEASURED)  # fmt: skip
    train(model, loader, 2)
    gathered = network()
    gathered.load_state_dict({name: value.full_tensor().cpu() for name, value in model.state_dict().items()})
    check_close(gathered, train_alone(2, seed=4), EXACT)


@on_layouts("AAA")
def test_batch_norm_over_uneven_and_empty_shares(rank: int, size: int) -> None:
    def with_norm() -> nn.Module:
        torch.manual_seed(8)
        return nn.Sequential(nn.Linear(FEATURES, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, CLASSES)).double()

    alone, data = with_norm(), dataset()
    update = sgd(alone.parameters())
    order = atoll.plan.permutation(SAMPLES, 0, 0)
    for first in range(0, SAMPLES, BATCH):
        inputs, targets, _ = data[order[first : first + BATCH]]
        update.zero_grad()
        nn.functional.cross_entropy(alone(inputs), targets).backward()
        update.step()
    model = DistributedDataParallel(atoll.training.convert_batch_norm(with_norm()))
    loader = atoll.DataLoader(data, BATCH, model=model, policy="fixed", shares=[0, 3, 2],
                              settings=atoll.training.Settings(measure=False, least=0))  # fmt: skip
    train(model, loader, 1)
    check_close(model.module, alone, 1e-11)
    mine, theirs = model.module[1], alone[1]
    assert torch.allclose(mine.running_mean, theirs.running_mean)
    assert torch.allclose(mine.running_var, theirs.running_var)


@on_layouts("AA")
def test_batch_norm_over_parts_without_elements(rank: int, size: int) -> None:
    """Where no rank's part has an element, no statistics are kept instead of those of nothing."""
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(FEATURES, 9), nn.BatchNorm1d(TOKENS), nn.Linear(9, CLASSES)).double()
    model = DistributedDataParallel(atoll.training.convert_batch_norm(net))
    loader = atoll.DataLoader(sentences(), BATCH, model=model, policy="equal", micro_batch=1, elements=valid_tokens,
                              settings=UNMEASURED)  # fmt: skip
    empty = 0
    for inputs, labels in loader:
        empty += loader.elements == 0
        token_loss(model, inputs, labels).backward()
    assert empty
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name


@on_layouts("AA")
def test_a_short_step_may_be_too_short_for_batch_norm(rank: int, size: int) -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 9), nn.BatchNorm1d(9), nn.Linear(9, CLASSES)).double()
    data = TensorDataset(torch.zeros(BATCH + 3, FEATURES, dtype=torch.float64))
    with warnings_of_plans() as said:
        model = DistributedDataParallel(net)
        loader = atoll.DataLoader(data, BATCH, model=model, policy="equal", settings=UNMEASURED)
        sizes = [len(rows) for (rows,) in loader]
    assert sum(on_all_ranks(sizes[1])) == 3
    assert any("BatchNorm may refuse the single sample of a rank" in text for text in said) == (rank == 0)


# Proves E-2.
@on_layouts("AAA")
def test_resumes_on_other_ranks(rank: int, size: int) -> None:
    """Two ranks stop in the middle of the second epoch, three continue, then one."""
    seen: list[int] = []
    state: dict[str, Any] = {}
    for members, steps in (([0, 1], 9), ([0, 1, 2], 3), ([1], 100)):
        group = dist.new_group(members)
        if rank in members:
            seen += _some_steps(group, members, state, steps)
        states = on_all_ranks(state)
        state = states[members[0]]
    everyone = [number for of_rank in on_all_ranks(seen) for number in of_rank]
    assert sorted(everyone) == sorted(itertools.chain(range(SAMPLES), range(SAMPLES)))
    alone = train_alone(2, seed=4)
    model = network()
    model.load_state_dict(state["model"])
    check_close(model, alone, EXACT)


def _some_steps(group: Any, members: list[int], state: dict[str, Any], steps: int) -> list[int]:
    """Trains from `state` for at most `steps` steps, and not beyond the second epoch; `state` is updated."""
    net = network()
    model = DistributedDataParallel(net, process_group=group)
    update = sgd(model.parameters())
    shares = [1.0 + member for member in members]
    loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="fixed", shares=shares, seed=4, settings=UNMEASURED)
    if state:
        net.load_state_dict(state["model"])
        update.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    seen: list[int] = []
    done = 0
    while loader.epoch < 2:
        for inputs, targets, numbers in loader:
            if loader.weight:
                seen += numbers.tolist()
            update.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            update.step()
            done += 1
            state.update(model=net.state_dict(), optimizer=update.state_dict(), loader=loader.state_dict())
            if done == steps:
                return seen
    return seen
