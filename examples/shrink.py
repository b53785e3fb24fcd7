# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's handwritten digits, and continues when ranks are lost.

atoll run --on-failure=shrink --max-restarts=3 --nproc-per-node=3 examples/shrink.py --kill --epochs 150

With --kill, rank 1 kills itself in the middle of the training, the first time that it runs. The others continue without
it, and admit it again when it has been restarted, which takes some seconds."""

import argparse
import os
import signal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import atoll

STEP_OF_DEATH = 100


def load_data() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.from_numpy(images / 16.0).float(), torch.from_numpy(labels).long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    device = atoll.device()
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, foreach=False)
    data = load_data()
    trainer = atoll.ElasticTrainer(net, optimizer, lambda model: atoll.DataLoader(data, 96, model=model))
    dies = arguments.kill and os.environ.get("ATOLL_MEMBER") == "1.0"  # local rank 1, as it was started first

    for step in trainer.steps(arguments.epochs):
        with step as (images, labels):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trainer.model(images.to(device)), labels.to(device))
            loss.backward()
            mean = step.mean(loss).item()
            if dies and step.number == STEP_OF_DEATH:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
        if step.is_done and step.number % 50 == 0 and os.environ["LOCAL_RANK"] == "0":
            print(f"step {step.number}: loss {mean:.4f} on ranks {trainer.members}", flush=True)

    with torch.no_grad():
        images, labels = data.tensors
        right = (net(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
    print(f"{right:.1%} of the digits are recognised", flush=True)


if __name__ == "__main__":
    main()
