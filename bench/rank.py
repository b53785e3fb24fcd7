# SPDX-License-Identifier: Apache-2.0
"""A rank that executes commands: a JSON object per line on standard input, an answer per line on standard output.

Between commands it sleeps in read(), so that it takes no processor time from what is being measured."""

import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import atoll
import fewer_bytes_training
import nothing
import staged
from atoll.bench import groups, links
from atoll.bench.block import run_block
from atoll.bench.devices import oversubscribed, take_device
from atoll.bench.operations import Operation, Problem, make
from ddp_step import DdpSteps
from fewer_bytes import Run as FewerBytes
from pairs import run_pairs
from pipelines_cases import Case
from pipelines_training import PipelineTraining, alone
from training import Training
from uneven import Run
from uneven_training import UnevenTraining

TIMEOUT = timedelta(seconds=180)


class Rank:
    def __init__(self, backends: list[str]) -> None:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message=r"barrier\(\)")  # the library uses the current device
        self.device = take_device("")
        nothing.register(self.device.type)
        staged.register(self.device.type)
        world = groups.make_default(backends[0], TIMEOUT)
        self.groups = {backends[0]: world}
        for name in backends[1:]:
            self.groups[name] = groups.make_another(name, world, TIMEOUT)
        self.operations: dict[tuple[str, Problem], Operation] = {}
        self.ddp: DdpSteps | None = None
        self.trained: Training | None = None
        self.pipelines = PipelineTraining(self.device)

    def do_block(self, backend: str, problem: dict[str, Any], calls: int, each: bool) -> dict[str, Any]:
        """A timed block."""
        operation = self.operation(backend, problem)
        answer = asdict(run_block(operation, calls))
        if not each:
            answer["call_ns"] = []
        return {**answer, "bytes": operation.bytes, "most_calls": operation.most_calls}

    def do_pairs(self, backends: list[str], problem: dict[str, Any], pairs: int) -> dict[str, Any]:
        return run_pairs([self.operation(backend, problem) for backend in backends], pairs)

    def do_most_calls(self, backend: str, problem: dict[str, Any]) -> dict[str, Any]:
        return {"calls": self.operation(backend, problem).most_calls}

    def operation(self, backend: str, problem: dict[str, Any]) -> Operation:
        """Returns the operation of this problem, which is kept until another problem is given."""
        device = str(self.device) if problem["device"] == "own" else "cpu"
        key = (backend, Problem(**{**problem, "device": device}))
        if any(known.bytes != key[1].bytes or known.operation != key[1].operation for _, known in self.operations):
            self.operations.clear()
        if key not in self.operations:
            self.operations[key] = make(key[1], self.groups[backend])
        return self.operations[key]

    def do_links(self, backend: str) -> dict[str, Any]:
        view = links.of_this_rank(backend, self.groups[backend])
        return {"kinds": {str(peer): kind for peer, kind in view.kinds.items()}}

    def do_link_texts(self, backend: str) -> dict[str, Any]:
        """Returns what atoll.links reports for each link."""
        return {"texts": {str(peer): text for peer, text in atoll.links(self.groups[backend]).items()}}

    def do_late_barrier(self, backend: str, late_seconds: float) -> dict[str, Any]:
        """Enters a barrier that the last rank enters late; returns the processor time of waiting for it."""
        group = self.groups[backend]
        for _ in range(3):
            dist.barrier(group=group)
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(late_seconds)
        wall, cpu = time.monotonic(), time.process_time()
        dist.barrier(group=group)
        return {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}

    def do_ddp_model(self, **settings: Any) -> dict[str, Any]:
        self.ddp = DdpSteps(self.groups, **settings)
        return {"parameter_bytes": self.ddp.parameter_bytes}

    def do_ddp_step(self, backend: str, batch: int, communicate: bool) -> dict[str, Any]:
        assert self.ddp is not None
        return self.ddp.step(backend, batch, communicate)

    def do_ddp_buckets(self, backend: str) -> dict[str, Any]:
        assert self.ddp is not None
        return {"bytes": self.ddp.bucket_bytes(backend)}

    def do_training(self, kind: str, names: list[str], **model: int) -> dict[str, Any]:
        chosen = {name: self.groups[name] for name in names}
        self.trained = Training(chosen, self.device, kind, **model)
        return {}

    def do_training_block(self, name: str, steps: int) -> dict[str, Any]:
        assert self.trained is not None
        return {"seconds": self.trained.block(name, steps)}

    def do_training_differ(self, names: list[str]) -> dict[str, Any]:
        assert self.trained is not None
        return {"relative": self.trained.parameters_differ(names)}

    def do_train(self, **run: Any) -> dict[str, Any]:
        return UnevenTraining(Run(**run), self.device, self.groups[run["backend"]]).run()

    def do_fewer_bytes(self, **run: Any) -> dict[str, Any]:
        return fewer_bytes_training.train(FewerBytes(**run))

    def do_pipeline_make(self, name: str, case: dict[str, Any]) -> dict[str, Any]:
        return self.pipelines.make(name, Case(**case))

    def do_pipeline_block(self, name: str, steps: int) -> dict[str, Any]:
        return self.pipelines.block(name, steps)

    def do_pipeline_drop(self, names: list[str]) -> dict[str, Any]:
        self.pipelines.drop(names)
        return {}

    def do_pipeline_links(self) -> dict[str, Any]:
        return {"links": self.pipelines.links()}

    def do_pipeline_alone(self, case: dict[str, Any], steps: int) -> dict[str, Any]:
        """Trains the whole model on the first rank alone."""
        return {"losses": alone(Case(**case), steps) if dist.get_rank() == 0 else []}

    def do_oversubscribed(self) -> dict[str, Any]:
        return {"late": oversubscribed(self.device)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # anything that libraries print must not look like an answer
    rank = Rank(sys.argv[1].split(","))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(rank, f"do_{command.pop('do')}")(**command)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
            raise
        print(json.dumps(answer), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
