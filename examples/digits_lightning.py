# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py with Lightning, on uneven batches.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/digits_lightning.py

Rank 0 takes three quarters of each batch, as if it were three times as fast; without `policy` and `shares` the ranks
are measured. The network learned is that of one process with batches of 64."""

import os
import tempfile

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from atoll.adapters.lightning import DataLoader
from train_digits import SEED, accuracy, load_data, make_network

EPOCHS, RANKS = 4, int(os.environ["WORLD_SIZE"])


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_network()
        self.train_data, self.test_data = load_data()

    def train_dataloader(self) -> DataLoader:
        """Returns the loader; Lightning calls this when the model is wrapped."""
        shares = [3.0] + [1.0] * (RANKS - 1)
        return DataLoader(self.trainer, self.train_data, 64, policy="fixed", shares=shares)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Measurements call this."""
        return self.net(images)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=2e-3)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = Digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=RANKS, strategy=DDPStrategy(process_group_backend="atoll"), max_epochs=EPOCHS,
            use_distributed_sampler=False, default_root_dir=folder, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model)
    if trainer.is_global_zero:
        print(f"accuracy on the held-out fifth: {accuracy(model.net, model.test_data):.1%}", flush=True)


if __name__ == "__main__":
    main()
