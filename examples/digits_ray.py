# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train_digits.py with Ray Train on two kinds of workers. Each node of the cluster names its kind
when it starts, and its workers inherit that (docs/launchers.md):

ATOLL_ISLAND=fast ATOLL_DEVICE=cuda ray start --head --labels kind=fast
ATOLL_ISLAND=slow ATOLL_DEVICE=cpu ray start --address HEAD:6379 --labels kind=slow
python examples/digits_ray.py --workers fast slow slow"""

import argparse
import os
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import atoll
from train_digits import SEED, accuracy, load_data, make_network

EPOCHS = 4


def train() -> str:
    """Runs on each worker, after Ray has made the group."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    train_data, test_data = load_data()
    place = atoll.device()
    model = nn.parallel.DistributedDataParallel(make_network().to(place))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    loader = atoll.DataLoader(train_data, global_batch=64, model=model)
    for _epoch in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(place)), labels.to(place)).backward()
            optimizer.step()
    islands = [""] * dist.get_world_size()
    dist.all_gather_object(islands, os.environ.get("ATOLL_ISLAND", "unnamed"))
    share = accuracy(model.module, test_data)
    return f"workers on the islands {', '.join(islands)} over {dist.get_backend()}: accuracy {share:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", default=["fast", "slow"], metavar="KIND", help="one for each worker")
    arguments = parser.parse_args()
    ray.init(address="auto", runtime_env={"working_dir": str(Path(__file__).parent)})
    kinds = [{"kind": kind} for kind in arguments.workers]
    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=len(kinds), label_selector=kinds, resources_per_worker={"CPU": 1}),
        torch_config=TorchConfig(backend="atoll"),
    ).fit()
    print(result.return_value)
    ray.shutdown()


if __name__ == "__main__":
    main()
