#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A loop of small calls in a group of one rank, for a profiler: what a call costs before anything is sent."""

import argparse
import time

import torch
import torch.distributed as dist

import nothing

BACKENDS = ("atoll", nothing.NAME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--calls", type=int, default=200_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("atoll", store=dist.TCPStore("127.0.0.1", 0, is_master=True), rank=0, world_size=1)
    nothing.register("cpu")
    group = dist.new_group([0], backend=options.backend)
    tensor = torch.ones(1)
    begin = time.perf_counter()
    for _ in range(options.calls):
        dist.all_reduce(tensor, group=group)
    seconds = time.perf_counter() - begin
    print(f"{options.backend}: {seconds / options.calls * 1e6:.2f} us a call, {options.calls} calls")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
