# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py in a loop of Hugging Face accelerate, on uneven batches.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/digits_accelerate.py

Rank 0 takes three quarters of each batch, as if it were three times as fast; without `policy` and `shares` the ranks
are measured. The network learned is that of one process with batches of 64."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

import atoll
from atoll.adapters.accelerate import DataLoader
from train_digits import SEED, accuracy, load_data, make_network

EPOCHS = 4


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("atoll")  # before the Accelerator, which would make its own group
    torch.manual_seed(SEED)
    accelerator = Accelerator(cpu=atoll.device().type == "cpu")
    net = make_network()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=2e-3))
    train_data, test_data = load_data()
    shares = [3.0] + [1.0] * (dist.get_world_size() - 1)
    loader = DataLoader(accelerator, train_data, 64, model=model, policy="fixed", shares=shares)
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1} of {EPOCHS}: batches {loader.batch_sizes()}", flush=True)
    accelerator.print(f"accuracy on the held-out fifth: {accuracy(model.module, test_data):.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
