# SPDX-License-Identifier: Apache-2.0
"""Groups that are made for a device (device_id), split groups and meshes; TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from support import run_script

BEGIN = """
import os
import torch, torch.distributed as dist

layout, rank = os.environ["TEST_LAYOUT"], int(os.environ["RANK"])
size, letter = len(layout), layout[rank]
os.environ["ATOLL_ISLAND"] = letter
place = "cpu"
if letter.islower():
    import atoll.sim
    place = "sim"

def total(group=None):
    tensor = torch.full((5,), float(rank), device=place)
    dist.all_reduce(tensor, group=group)
    return int(tensor[3].item())
"""
END = """
assert total() == sum(range(size))
dist.barrier()
dist.destroy_process_group()
print("good")
"""

FOR_A_DEVICE = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("atoll", device_id=torch.device(place, 0))
for parts in ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 3], [2]]):
    mine = next(part for part in parts if rank in part)
    assert total(dist.split_group(split_ranks=parts)) == sum(mine)
mesh = init_device_mesh(place, (2, 2), mesh_dim_names=("replicate", "shard"))
assert total(mesh["replicate"].get_group()) == rank % 2 + rank % 2 + 2
assert total(mesh["shard"].get_group()) == 4 * (rank // 2) + 1
model = fully_shard(torch.nn.Linear(3, 3).to(place), mesh=mesh)
model(torch.ones(2, 3, device=place)).sum().backward()
assert model.bias.grad.full_tensor().eq(2).all()
"""

NOT_SPLIT = """
dist.init_process_group("atoll", device_id=torch.device("sim", 0) if place == "sim" else None)
if place == "sim":
    try:
        dist.split_group(split_ranks=[[0, 1], [2]])
    except RuntimeError as error:
        assert "splitting" in str(error), error
    else:
        raise AssertionError("a group with CPU ranks was split")
"""

IN_DETAIL = """
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("atoll")
model = DistributedDataParallel(torch.nn.Linear(3, 3).to(place))
model(torch.ones(2, 3, device=place)).sum().backward()
assert model.module.bias.grad.eq(2).all()
"""

REFUSED = """
dist.init_process_group("atoll")
try:
    total()
except RuntimeError as error:
    assert "Detected mismatch between collectives" in str(error) and f"device={place}" in str(error), error
    print("good")
"""


def check(source: str, layout: str, environment: dict[str, str]) -> None:
    finished = run_script(source, len(layout), environment | {"TEST_LAYOUT": layout})
    for rank, each in enumerate(finished):
        assert each.returncode == 0, f"rank {rank}: {each.stderr}"
        assert "good" in each.stdout, f"rank {rank}: {each.stdout}"


def test_groups_for_a_device() -> None:
    check(BEGIN + FOR_A_DEVICE + END, "abab", {})


def test_a_group_with_cpus_is_not_split() -> None:
    check(BEGIN + NOT_SPLIT + END, "abC", {})


def test_debugging_in_detail() -> None:
    check(BEGIN + IN_DETAIL + END, "ab", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def test_debugging_in_detail_refuses_unlike_devices() -> None:
    """PyTorch's own comparison of calls: it says which devices they are for."""
    check(BEGIN + REFUSED, "Ab", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
