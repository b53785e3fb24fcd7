# SPDX-License-Identifier: Apache-2.0
"""Models of loaders can be copied and saved; copies take no part in steps."""

import copy
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import atoll
from client_ranks import on_layouts
from test_loader import BATCH, UNMEASURED, dataset, train
from training import CLASSES, FEATURES
from uneven_training import sgd


def trained(micro_batch: int | None) -> tuple[DistributedDataParallel, atoll.DataLoader]:
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(FEATURES, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, CLASSES)).double()
    model = DistributedDataParallel(atoll.training.convert_batch_norm(net))
    loader = atoll.DataLoader(dataset(), BATCH, model=model, policy="fixed", shares=[1, 3], micro_batch=micro_batch,
                              settings=UNMEASURED)  # fmt: skip
    train(model, loader, 1)
    next(iter(loader))
    return model, loader


def saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def one_step(model: nn.Module, rank: int) -> None:
    update = sgd(model.parameters())
    inputs, targets, _ = dataset()[rank * 8 : rank * 8 + 8]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    update.step()


@on_layouts("AA")
def test_a_net_is_copied_and_saved(rank: int, size: int) -> None:
    for micro_batch in (None, 4):
        model, _ = trained(micro_batch)
        assert model.module[1].weights is not None
        copies = [copy.deepcopy(model.module), saved_and_loaded(model.module), AveragedModel(model.module).module]
        for net in copies:
            assert net[1].weights is None
            assert all(torch.equal(*pair) for pair in zip(net.parameters(), model.module.parameters(), strict=True))
            one_step(net, rank)
        assert all(not torch.equal(*pair) for pair in zip(net.parameters(), model.module.parameters(), strict=True))


@on_layouts("AA")
def test_a_wrapped_model_is_copied_and_saved(rank: int, size: int) -> None:
    """A copy is plain DistributedDataParallel until a loader is made for it."""
    for micro_batch in (None, 4):
        model, loader = trained(micro_batch)
        for made in (copy.deepcopy, saved_and_loaded):
            twin, plain = made(model), DistributedDataParallel(copy.deepcopy(model.module))
            with pytest.raises(RuntimeError, match="on a copy of a model that a loader weights"):
                twin.register_comm_hook(None, lambda state, bucket: None)
            for each in (twin, plain):
                each.zero_grad()
                one_step(each, rank)
            pairs = zip(twin.parameters(), plain.parameters(), strict=True)
            assert all(torch.allclose(mine, other, rtol=1e-13) for mine, other in pairs)
            twin = made(model)
            second = atoll.DataLoader(dataset(), BATCH, model=twin, policy="fixed", shares=[1, 3],
                                      micro_batch=micro_batch, settings=UNMEASURED)  # fmt: skip
            state = loader.state_dict()
            for each, its in ((model, loader), (twin, second)):
                its.load_state_dict(state)
                each.zero_grad()
                train(each, its, 1)
            dist.barrier()
            pairs = zip(twin.parameters(), model.parameters(), strict=True)
            assert all(torch.allclose(mine, other, rtol=1e-10) for mine, other in pairs)
