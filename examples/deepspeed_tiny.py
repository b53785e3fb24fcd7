# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's handwritten digits with DeepSpeed's ZeRO.

atoll run --island a:1,device=cpu --island b:1,device=cpu examples/deepspeed_tiny.py --stage 2
torchrun --nproc-per-node 2 examples/deepspeed_tiny.py --backend gloo     (the same on PyTorch's own backend)

Prints the loss of every tenth batch over all ranks, and finally the loss on all digits (docs/frameworks.md)."""

import argparse
import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read by the import

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from train_digits import SEED, load_data

BATCH = 64

# DeepSpeed would compile it at the first start on every machine; only inference within one host uses it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def make_engine(stage: int, ranks: int) -> Any:
    """Returns the network with its optimizer; ZeRO of `stage` divides their state, gradients and parameters."""
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 10))
    settings = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // ranks,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=settings)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="atoll")
    parser.add_argument("--stage", type=int, default=1, choices=(1, 2, 3), help="stage of ZeRO")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed(arguments.backend)  # deepspeed.initialize alone would take Gloo or NCCL
    rank, ranks = dist.get_rank(), dist.get_world_size()
    engine = make_engine(arguments.stage, ranks)
    if rank == 0:
        print(f"ZeRO {arguments.stage} over {dist.get_backend(engine.data_parallel_group)}, {ranks} ranks", flush=True)
    images, labels = load_data()[0].tensors
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    for step in range(arguments.steps):
        chosen = order.roll(-step * BATCH)[:BATCH][rank::ranks]
        loss = nn.functional.cross_entropy(engine(images[chosen]), labels[chosen])
        engine.backward(loss)
        engine.step()
        mean = loss.detach() / ranks
        deepspeed.comm.all_reduce(mean)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {mean.item():.6f}", flush=True)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(engine(images), labels)
    if rank == 0:
        print(f"step {arguments.steps}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
