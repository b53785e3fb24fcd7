# SPDX-License-Identifier: Apache-2.0
"""The robot of bench/gpu/split.py: one session per policy, with a JSON row for each on standard output."""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import atoll

LEAST, MOST, SECONDS = 3, 15, 1.5  # inferences, and the most seconds that they may take together
READY_SECONDS = 60.0


def is_right(answer: Any, example: dict[str, Any]) -> bool:
    """Returns whether the answer deviates from the model in float64 by at most twice as much as the undivided float32
    model."""
    leaves = [pytree.tree_leaves(each) for each in (answer, example["alone"], example["exact"])]
    for found, alone, exact in zip(*leaves, strict=True):
        if not found.is_floating_point():
            continue
        allowed = 2 * (alone - exact).abs().max() + 1e-6 * exact.abs().max()
        if not bool((found.double() - exact).abs().max() <= allowed):
            return False
    return True


def run(folder: Path, address: str, policy: str, example: dict[str, Any], quick: bool) -> dict[str, Any]:
    server = {} if policy == "local" else {"server": address, "key_file": folder / "key"}
    how = {"policy": policy, "device": "cpu", "hedge": "never", "profile_seconds": 0.1 if quick else 0.4}
    begin = time.perf_counter()
    with atoll.infer.Session(example["model"], **server, **how) as session:
        if server and not session.wait_until_ready(READY_SECONDS):
            raise SystemExit(f"the server is not ready: {session.report()['link']['text']}")
        ready = time.perf_counter() - begin
        times: list[float] = []
        answer = session.run(example["args"], example["kwargs"])
        while len(times) < LEAST or (len(times) < MOST and sum(times) < SECONDS):
            start = time.perf_counter()
            answer = session.run(example["args"], example["kwargs"])
            times.append(time.perf_counter() - start)
        last = session.last
    assert last is not None
    names = ("origin", "plan", "predicted", "bound", "up_bytes", "down_bytes")
    about = {name: getattr(last, name) for name in names}
    return {"policy": policy, "seconds": statistics.median(times), "runs": len(times), "ready_s": ready,
            "right": is_right(answer, example), **about}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("address")
    parser.add_argument("policies")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    example = torch.load(given.folder / "example.pt", weights_only=False)
    for policy in given.policies.split(","):
        print(json.dumps(run(given.folder, given.address, policy, example, given.quick)), flush=True)


if __name__ == "__main__":
    main()
