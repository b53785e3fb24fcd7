# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on scikit-learn's handwritten digits with stock DistributedDataParallel.

torchrun --nproc-per-node 3 examples/train_digits.py
torchrun --nproc-per-node 3 examples/train_digits.py --backend gloo     (the same on PyTorch's own backend)
atoll run --island a:2,device=cpu --island b:1,device=sim examples/train_digits.py     (islands of unlike devices)

Prints the accuracy on a fifth of the digits that training never sees."""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atoll

SEED = 2024


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns 1437 images of 8 x 8 pixels to train on and 360 held out; every digit has the same share in both."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.2, stratify=labels, random_state=SEED)
    train_images, test_images, train_labels, test_labels = (torch.from_numpy(part) for part in split)

    def dataset(pixels: torch.Tensor, digits: torch.Tensor) -> TensorDataset:
        return TensorDataset(pixels.float().reshape(-1, 1, 8, 8), digits.long())

    return dataset(train_images, train_labels), dataset(test_images, test_labels)


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25),
        nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def train(
    model: nn.Module,
    loader: Any,
    set_epoch: Callable[[int], None],
    epochs: int,
    progress: Callable[[int, int, float], None],
) -> None:
    """`progress(step, steps, loss)` is called after every step with the mean loss of this rank's epoch so far."""
    device = next(model.parameters()).device
    steps = epochs * len(loader)
    # PyTorch's default variant differs between device types in the last bits.
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    model.train()
    step = 0
    for epoch in range(epochs):
        set_epoch(epoch)
        losses = 0.0
        for index, (images, labels) in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            losses += loss.item()
            progress(step, steps, losses / index)


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    device = next(model.parameters()).device
    images, labels = data.tensors
    model.eval()
    return (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="atoll")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    torch.manual_seed(SEED + dist.get_rank())  # DDP starts from rank 0's network; dropout differs between ranks
    train_data, test_data = load_data()
    device = atoll.device() if arguments.backend == "atoll" else torch.device("cpu")
    model = DistributedDataParallel(make_network().to(device))

    def progress(step: int, steps: int, loss: float) -> None:
        if dist.get_rank() == 0 and step % (steps // arguments.epochs) == 0:
            print(f"step {step} of {steps}: loss {loss:.4f}", flush=True)

    sampler = DistributedSampler(train_data, seed=SEED)
    loader = DataLoader(train_data, batch_size=arguments.batch, sampler=sampler)
    train(model, loader, sampler.set_epoch, arguments.epochs, progress)
    if dist.get_rank() == 0:
        print(f"accuracy on the held-out fifth: {accuracy(model.module, test_data):.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
