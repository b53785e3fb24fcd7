# SPDX-License-Identifier: Apache-2.0
"""atoll.adapters.accelerate: accelerate's own loop is that of one process with the whole batch."""

import os
from typing import Any

import pytest
import torch
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

    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]  # as launchers say
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


@on_layouts("AA")
def test_trains_as_one_process(rank: int, size: int) -> None:
    """The optimizer and a scheduler are called after each batch, parts of a step among them."""
    reference = train_alone(EPOCHS, SEED)
    for micro_batch in (None, 2 + rank):
        accelerator = fresh_accelerator()
        net = network()
        update = sgd(net.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(update, lambda step: 1.0)
        model, optimizer, scheduler = accelerator.prepare(net, update, schedule)
        loader = DataLoader(accelerator, dataset(), BATCH, model=model, micro_batch=micro_batch, **UNEVEN)
        assert accelerator.prepare(loader) is loader
        batches = 0
        for _ in range(EPOCHS):
            for inputs, targets, _numbers in loader:
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                batches += 1
        check_equal_bits(model)
        check_close(model.module, reference, EXACT)
        assert schedule.last_epoch == STEPS
        assert (batches > STEPS) == (micro_batch is not None)
        assert accelerator.sync_gradients


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
