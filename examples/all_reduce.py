# SPDX-License-Identifier: Apache-2.0
"""Adds the ranks' numbers: torchrun --nproc-per-node 3 examples/all_reduce.py"""

import torch
import torch.distributed as dist

dist.init_process_group("atoll")
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {number.item():g}")
dist.destroy_process_group()
