# SPDX-License-Identifier: Apache-2.0
"""A job that reports the time of its first sum. Started by ready.py under a launcher."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
tensor = torch.ones(1024)
dist.all_reduce(tensor)
assert tensor.eq(dist.get_world_size()).all()
print(f"ready at {time.time()};", flush=True)
dist.destroy_process_group()
