# SPDX-License-Identifier: Apache-2.0
"""atoll.adapters.lightning: fit() gives the training of one process with the whole batch."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import atoll
from atoll.adapters.lightning import DataLoader
from client_ranks import on_layouts
from test_loader import BATCH, EXACT, SAMPLES, UNMEASURED, dataset, train_alone
from training import check_close, check_equal_bits, network
from uneven_training import sgd

EPOCHS, SEED = 2, 4
STEPS = EPOCHS * -(-SAMPLES // BATCH)


def module(**options: Any) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.batches = 0

        def train_dataloader(self) -> DataLoader:
            uneven = {"policy": "fixed", "shares": [1, 4], "seed": SEED, "settings": UNMEASURED} | options
            return DataLoader(self.trainer, dataset(), BATCH, **uneven)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.net(inputs)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            inputs, targets, _ = batch
            self.batches += 1
            return nn.functional.cross_entropy(self.net(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.net.parameters())

    return Module()


def fit(model: Any, size: int, resume: str | None = None, **options: Any) -> Any:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    given = {"accelerator": "cpu", "devices": size, "max_epochs": EPOCHS, "logger": False, "enable_progress_bar": False,
             "enable_model_summary": False, "enable_checkpointing": False, "use_distributed_sampler": False,
             "default_root_dir": tempfile.mkdtemp()}  # fmt: skip
    trainer = lightning.Trainer(strategy=DDPStrategy(process_group_backend="atoll"), **(given | options))
    trainer.fit(model, ckpt_path=resume)
    return trainer


@on_layouts("AA")
def test_trains_as_one_process(rank: int, size: int) -> None:
    for options in ({}, {"policy": "minmax", "shares": None, "settings": atoll.training.Settings()}):
        model = module(**options)
        fit(model, size)
        check_equal_bits(model.net)
        check_close(model.net, train_alone(EPOCHS, SEED), EXACT)


@on_layouts("AA")
def test_goes_on_from_a_checkpoint(rank: int, size: int) -> None:
    """The checkpoint is from the middle of an epoch, with the loader's state."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    keep = ModelCheckpoint(dirpath=folder[0], filename="{step}", every_n_train_steps=9, save_top_k=-1)
    fit(module(), size, enable_checkpointing=True, callbacks=[keep])
    model = module()
    fit(model, size, resume=str(Path(folder[0]) / "step=9.ckpt"))
    assert model.batches == STEPS - 9
    check_close(model.net, train_alone(EPOCHS, SEED), EXACT)


@on_layouts("AA")
def test_accumulation_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="accumulate_grad_batches=2"):
        fit(module(), size, accumulate_grad_batches=2)
    with pytest.raises(ValueError, match="micro_batch: Lightning calls the optimizer after each batch"):
        fit(module(micro_batch=2), size)
