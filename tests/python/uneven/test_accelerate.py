# SPDX-License-Identifier: Apache-2.0
"""atoll.adapters.accelerate: accelerate's own loop gives the training of one process with the whole batch."""

import os
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from atoll.adapters.accelerate import DataLoader
from client_ranks import on_layouts
from test_loader import BATCH, EXACT, SAMPLES, UNMEASURED, dataset, train_alone
from training import check_close, check_equal_bits, network
from uneven_training import sgd

EPOCHS, SEED = 2, 4
STEPS = EPOCHS * -(-SAMPLES // BATCH)
UNEVEN: dict[str, Any] = {"policy": "fixed", "shares": [1, 4], "seed": SEED, "settings": UNMEASURED}


def fresh_accelerator(**options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]  # as set by launchers
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def train(accelerator: Any, loader: DataLoader, model: nn.Module, optimizer: Any, scheduler: Any) -> int:
    """Trains the rest of an epoch with accelerate's methods. Returns its batches."""
    batches = 0
    for inputs, targets, _numbers in loader:
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        batches += 1
    return batches


def prepared(accelerator: Any, **options: Any) -> tuple[DataLoader, nn.Module, Any, Any]:
    net = network()
    update = sgd(net.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(update, lambda step: 1.0)
    model, optimizer, scheduler = accelerator.prepare(net, update, schedule)
    return DataLoader(accelerator, dataset(), BATCH, model=model, **options), model, optimizer, scheduler


@on_layouts("AA")
def test_trains_as_one_process(rank: int, size: int) -> None:
    """The optimizer and a scheduler are called after each batch, including the parts of a step."""
    reference = train_alone(EPOCHS, SEED)
    for options in (UNEVEN, UNEVEN | {"micro_batch": 2 + rank}, {"seed": SEED}):
        accelerator = fresh_accelerator()
        loader, model, optimizer, scheduler = prepared(accelerator, **options)
        assert accelerator.prepare(loader) is loader
        batches = sum(train(accelerator, loader, model, optimizer, scheduler) for _ in range(EPOCHS))
        check_equal_bits(model)
        check_close(model.module, reference, EXACT)
        assert scheduler.scheduler.last_epoch == STEPS
        assert (batches > STEPS) == ("micro_batch" in options)
        assert accelerator.sync_gradients


@on_layouts("AA")
def test_goes_on_from_a_checkpoint(rank: int, size: int) -> None:
    """The checkpoint is from the middle of an epoch; accelerate saves the loader's state with its own."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    accelerator = fresh_accelerator()
    loader, model, optimizer, _ = prepared(accelerator, **UNEVEN)
    accelerator.register_for_checkpointing(loader)
    for index, (inputs, targets, _numbers) in enumerate(loader):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if index == 2:
            accelerator.save_state(folder[0])
            break
    accelerator = fresh_accelerator()
    loader, model, optimizer, scheduler = prepared(accelerator, **(UNEVEN | {"shares": [2, 1]}))
    accelerator.register_for_checkpointing(loader)
    accelerator.load_state(folder[0])
    assert sum(train(accelerator, loader, model, optimizer, scheduler) for _ in range(EPOCHS)) == STEPS - 3
    check_close(model.module, train_alone(EPOCHS, SEED), EXACT)


@on_layouts("AA")
def test_accumulation_of_accelerate_is_refused(rank: int, size: int) -> None:
    accelerator = fresh_accelerator(gradient_accumulation_steps=2)
    model = accelerator.prepare(network())
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        DataLoader(accelerator, dataset(), BATCH, model=model, **UNEVEN)
    with pytest.raises(TypeError, match="accelerate has not wrapped the model"):
        DataLoader(fresh_accelerator(), dataset(), BATCH, model=model.module, **UNEVEN)
    accelerator = fresh_accelerator()
    loader = DataLoader(accelerator, dataset(), BATCH, model=model, micro_batch=2, **UNEVEN)
    batches = iter(loader)
    next(batches)
    with accelerator.accumulate(model):
        pass
    with pytest.raises(RuntimeError, match="in the middle of a step"):
        next(batches)
