# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py in a loop with Lightning Fabric, on uneven batches.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/digits_fabric.py

Rank 0 takes three quarters of each batch, as if it were three times as fast; without `policy` and `shares` the ranks
are measured. The network learned is that of one process with batches of 64."""

import os

import lightning
import torch
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from atoll.adapters.lightning import FabricDataLoader
from train_digits import SEED, accuracy, load_data, make_network

EPOCHS, RANKS = 4, int(os.environ["WORLD_SIZE"])


def main() -> None:
    torch.set_num_threads(1)
    fabric = lightning.Fabric(
        accelerator="cpu", devices=RANKS, strategy=DDPStrategy(process_group_backend="atoll")
    )  # fmt: skip
    fabric.launch()
    torch.manual_seed(SEED)
    net = make_network()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=2e-3))
    train_data, test_data = load_data()
    shares = [3.0] + [1.0] * (RANKS - 1)
    loader = FabricDataLoader(model, train_data, 64, policy="fixed", shares=shares)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    fabric.print(f"accuracy on the held-out fifth: {accuracy(net, test_data):.1%}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
