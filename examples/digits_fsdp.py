# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on the handwritten digits with FSDP2, in a loop like torchtitan's: the model is made on
the meta device, sharded block by block, and only then given memory and weights; distributed checkpoints can be resumed
on any number of ranks.

atoll run --island a:1,device=cpu --island b:1,device=sim examples/digits_fsdp.py --checkpoint ckpt --steps 200
torchrun --nproc-per-node 3 examples/digits_fsdp.py --checkpoint ckpt --steps 300     (goes on from step 200)"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import atoll
from train_digits import SEED, accuracy, load_data

BATCH, WIDTH = 96, 48


class Digits(nn.Module):
    """Reads a digit as a sequence of its eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.positions = nn.Linear(8, WIDTH), nn.Linear(8, WIDTH, bias=False)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 10)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Gives the same weights on any number of ranks and any device: each rank draws whole weights and keeps its
        shard of them."""
        generator = torch.Generator().manual_seed(SEED)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                whole = torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5
            else:
                whole = torch.full(parameter.shape, float("norm" in name and name.endswith("weight")))
            mesh, placements = parameter.device_mesh, parameter.placements
            parameter.copy_(distribute_tensor(whole.to(parameter.device), mesh, placements, src_data_rank=None))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.rows(images.squeeze(1)) + self.positions.weight.T
        for block in self.blocks:
            values = block(values)
        return self.head(values.mean(1))


def make_model() -> Digits:
    place = atoll.device()
    mesh = init_device_mesh(place.type, (dist.get_world_size(),))
    if place.index is not None:
        torch.accelerator.set_device_index(place.index)  # the mesh has set the one numbered like the local rank
    with torch.device("meta"):
        model = Digits()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=place)
    model.init_weights()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder that all ranks see")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("atoll")
    rank, ranks, place = dist.get_rank(), dist.get_world_size(), atoll.device()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    step = torch.zeros((), dtype=torch.int64)
    if (arguments.checkpoint / ".metadata").exists():
        parameters, moments = get_state_dict(model, optimizer)
        dcp.load({"model": parameters, "optimizer": moments, "step": step}, checkpoint_id=arguments.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
    begin, (train_data, test_data) = int(step), load_data()
    images, labels = train_data.tensors
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    while step < arguments.steps:
        chosen = order.roll(-int(step) * BATCH)[:BATCH][rank::ranks]
        loss = nn.functional.cross_entropy(model(images[chosen].to(place)), labels[chosen].to(place))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments, "step": step}, checkpoint_id=arguments.checkpoint)
    share = accuracy(model, test_data)  # by all ranks: each holds a part of every block
    if rank == 0:
        print(f"steps {begin} to {int(step)} on {ranks} ranks: accuracy on the held-out fifth: {share:.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
