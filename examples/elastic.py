# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py so that the training survives the loss of ranks, islands and hosts.

atoll run --max-restarts=3 --island a:2,device=cpu --island b:1,device=cpu examples/elastic.py --folder saved

Kill a rank (`atoll ps` shows their process numbers): all ranks start again from the last checkpoint, and each sample of
an epoch counts once. With --min-islands=1 --max-restarts=0 the other island continues alone. Several hosts that may
come and go each run

atoll run --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --rdzv-id=job1 examples/elastic.py --folder saved

To start over, use another folder."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from train_digits import SEED, accuracy, load_data, make_network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="where checkpoints are kept")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("atoll")
    torch.manual_seed(SEED + dist.get_rank())
    train_data, test_data = load_data()
    device = atoll.device()
    model = DistributedDataParallel(make_network().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    loader = atoll.DataLoader(train_data, 64, model=model, seed=SEED)
    checkpointer = atoll.Checkpointer(arguments.folder, model=model, optimizer=optimizer, loader=loader, every=10)

    steps = checkpointer.resume()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks go on from step {steps}: batches {loader.batch_sizes()}", flush=True)
    while loader.epoch < arguments.epochs:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            checkpointer.step()
    checkpointer.save()
    if dist.get_rank() == 0:
        right = accuracy(model.module, test_data)
        print(f"{checkpointer.steps} steps: accuracy on the held-out fifth: {right:.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
