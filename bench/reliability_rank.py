# SPDX-License-Identifier: Apache-2.0
"""A rank that calls all_reduce until a fault happens to it or until it causes one, and the store that the ranks meet
through. The rank appends events to a file, a JSON object per line, with time.monotonic()."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

COUNT = 25_000
START_STEPS = 20
AGAIN_S = 20
STORE_S = 30


class Rank:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.rank: int = settings["rank"]
        self.ranks: int = settings["ranks"]
        self.fault: str = settings["fault"]
        self.is_victim = self.rank == settings["victim"]
        self.goes_on = [rank for rank in range(self.ranks) if settings["all"] or rank != settings["victim"]]
        self.folder = Path(settings["folder"])
        self.file = (self.folder / f"rank-{self.rank}").open("a")
        store = dist.TCPStore(settings["address"], settings["port"], is_master=False,
                              timeout=timedelta(seconds=STORE_S))  # fmt: skip
        limit = {"timeout": timedelta(seconds=settings["timeout"])} if settings["timeout"] else {}
        dist.init_process_group(
            settings["backend"],
            store=store,
            rank=self.rank,
            world_size=self.ranks,
            **limit,  # type: ignore[arg-type]
        )

    def tell(self, event: str, text: str = "") -> None:
        print(json.dumps({"event": event, "at": time.monotonic(), "text": text}), file=self.file, flush=True)

    def step(self, group: dist.ProcessGroup | None = None, count: int = COUNT) -> None:
        tensor = torch.full((count,), float(self.rank))
        dist.all_reduce(tensor, group=group)
        expected = sum(dist.get_process_group_ranks(group or dist.group.WORLD))
        if not bool((tensor == expected).all()):
            self.tell("wrong", f"the sum is {tensor.min().item():g} to {tensor.max().item():g}, not {expected}")
            os._exit(0)

    def run(self) -> None:
        told = 0.0
        steps = 0
        while True:
            self.step()
            steps += 1
            if steps == START_STEPS:
                self.tell("running")
            if time.monotonic() > told + 1:
                told = time.monotonic()
                self.tell("step")
            if self.fault == "store" and self.agree_on_fault():
                dist.new_group(timeout=timedelta(seconds=10))
                self.tell("wrong", "a group was made without a store")
                os._exit(0)
            if self.is_victim and self.is_time():
                self.misbehave()

    def is_time(self) -> bool:
        return (self.folder / "fault").exists()

    def agree_on_fault(self) -> bool:
        seen = torch.tensor([float(self.is_time())])
        dist.all_reduce(seen, dist.ReduceOp.MAX)
        return bool(seen.item())

    def misbehave(self) -> None:
        if not (self.folder / "begun").exists():
            (self.folder / "begun").touch()
            self.tell("misbehaves")
        if self.fault == "exit":
            sys.exit(0)
        if self.fault == "never":
            time.sleep(3600)
        if self.fault == "slow":
            time.sleep(1)
        if self.fault == "shape":
            dist.all_reduce(torch.ones(COUNT + 10))
        if self.fault == "operation":
            dist.broadcast(torch.ones(COUNT), src=0)

    def again(self) -> None:
        """Records whether the surviving ranks can form a group in the same processes."""
        try:
            limit = timedelta(seconds=AGAIN_S)
            group = dist.new_group(self.goes_on, timeout=limit, use_local_synchronization=True)
            for _ in range(3):
                self.step(group)
        except Exception as error:
            self.tell("not recovered", f"{type(error).__name__}: {error}")
        else:
            self.tell("recovered")


def serve_store(settings: dict[str, Any]) -> None:
    store = dist.TCPStore(settings["address"], settings["port"], is_master=True, wait_for_workers=False)
    (Path(settings["folder"]) / "store.new").write_text(str(store.port))
    (Path(settings["folder"]) / "store.new").rename(Path(settings["folder"]) / "store")
    time.sleep(3600)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if settings["rank"] < 0:
        serve_store(settings)
        return
    if settings["backend"] == "atoll":
        import atoll  # noqa: F401
    rank = Rank(settings)
    try:
        rank.run()
    except Exception as error:
        rank.tell("error", f"{type(error).__name__}: {error}")
        if rank.rank in rank.goes_on and rank.fault != "store":
            rank.again()
        rank.tell("done")
        os._exit(0)


if __name__ == "__main__":
    main()
