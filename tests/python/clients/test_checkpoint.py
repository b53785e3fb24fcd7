# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint saves with all ranks and loads in other layouts."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from client_ranks import EVERYWHERE, on_layouts
from support import device
from training import network, train_together

WHOLE = torch.arange(21, dtype=torch.float32).reshape(7, 3)


def common_folder(rank: int) -> Path:
    """A new folder, the same on every rank; the first rank removes it with `remove`."""
    name = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(name)
    assert name[0] is not None
    return Path(name[0])


def remove(folder: Path, rank: int) -> None:
    dist.barrier()
    if rank == 0:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink()
        folder.rmdir()


def state(mesh: DeviceMesh, placement: Placement, fill: bool, rank: int) -> dict[str, object]:
    whole = WHOLE if fill else torch.zeros_like(WHOLE)
    return {
        "sharded": distribute_tensor(whole.clone(), mesh, [placement]),
        "plain": torch.full((3,), 5.0 if fill else 0.0, device=device()),
        "step": 17 if fill else 0,
        f"own{rank}": torch.full((2,), float(rank if fill else -1), device=device()),
    }


@on_layouts(*EVERYWHERE)
def test_other_placements(rank: int, size: int) -> None:
    mesh, folder = init_device_mesh(device(), (size,)), common_folder(rank)
    checkpoint.save(state(mesh, Shard(0), True, rank), checkpoint_id=folder)
    for placement in (Shard(0), Shard(1), Replicate()):
        loaded = state(mesh, placement, False, rank)
        checkpoint.load(loaded, checkpoint_id=folder)
        assert torch.equal(loaded["sharded"].full_tensor().cpu(), WHOLE)  # type: ignore[attr-defined]
        assert torch.equal(loaded["plain"].cpu(), torch.full((3,), 5.0))  # type: ignore[arg-type]
        assert loaded["step"] == 17
        assert torch.equal(loaded[f"own{rank}"].cpu(), torch.full((2,), float(rank)))  # type: ignore[arg-type]
    if rank == 0:
        alone: dict[str, object] = {"sharded": torch.zeros_like(WHOLE)}
        checkpoint.load(alone, checkpoint_id=folder, no_dist=True)
        assert torch.equal(alone["sharded"], WHOLE)  # type: ignore[arg-type]
    remove(folder, rank)


@on_layouts(*EVERYWHERE)
def test_saving_while_training_goes_on(rank: int, size: int) -> None:
    mesh, folder = init_device_mesh(device(), (size,)), common_folder(rank)
    background = dist.new_group()  # a group's collectives have one order, so the thread that saves needs its own
    saved = checkpoint.async_save(state(mesh, Shard(0), True, rank), checkpoint_id=folder, process_group=background)
    for _ in range(20):
        tensor = torch.ones(100, device=device())
        dist.all_reduce(tensor)
        assert tensor.eq(size).all()
    saved.result(timeout=30)
    loaded = state(mesh, Shard(1), False, rank)
    checkpoint.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["sharded"].full_tensor().cpu(), WHOLE)  # type: ignore[attr-defined]
    remove(folder, rank)


@on_layouts(*EVERYWHERE)
def test_training_resumes(rank: int, size: int) -> None:
    mesh, folder = init_device_mesh(device(), (size,)), common_folder(rank)
    trained = fully_shard(network(place=device()), mesh=mesh)
    train_together(trained, rank, 3)
    update = torch.optim.Adam(trained.parameters())
    trained(torch.ones(1, 12, dtype=torch.float64, device=device())).sum().backward()
    update.step()
    model_state, update_state = get_state_dict(trained, update)
    checkpoint.save({"model": model_state, "update": update_state}, checkpoint_id=folder)

    resumed = fully_shard(network(place=device()), mesh=mesh)
    other = torch.optim.Adam(resumed.parameters())
    model_state, update_state = get_state_dict(resumed, other)
    checkpoint.load({"model": model_state, "update": update_state}, checkpoint_id=folder)
    set_state_dict(resumed, other, model_state_dict=model_state, optim_state_dict=update_state)
    for mine, expected in zip(resumed.parameters(), trained.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), expected.full_tensor())
        assert torch.equal(other.state[mine]["exp_avg"].full_tensor(), update.state[expected]["exp_avg"].full_tensor())
    remove(folder, rank)
