# SPDX-License-Identifier: Apache-2.0
"""Runs one model on a photograph, divided between a slow robot and a server, over a link of 40 Mbit/s.

The robot is this process, on a simulated device of 10 Gflop/s; the server is `atoll serve` on this machine's processor;
the link is a relay between them, through which all bytes really pass. The demo shows the time of an answer on the robot
alone, with everything sent to the server, and as Atoll divides it, and checks that the answer is the model's. Then it
kills the server, and still gets an answer. It ends with 1 if anything is wrong."""

import argparse
import copy
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("ATOLL_SIM_SPEED", "1")  # 10 Gflop/s
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import atoll
import atoll.sim
from atoll.infer.planning.relay import Relay
from atoll.infer.planning.trace import Trace

LINK_MBIT = 40
SIZE = 224
RUNS = 10
READY_SECONDS = 60
POLICIES = ("local", "offload", "auto")


class Net(nn.Module):
    """Takes the photograph as bytes, so that bytes are sent to the server; weights are random."""

    def __init__(self) -> None:
        super().__init__()
        widths, layers = (3, 16, 32, 64, 128, 256), []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], 1000)

    def forward(self, photograph: torch.Tensor) -> torch.Tensor:
        values = self.body(photograph.to(self.head.weight.dtype) / 255)
        return self.head(values.mean((2, 3)))


def photograph() -> torch.Tensor:
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[None].float()
    return nn.functional.interpolate(pixels, (SIZE, SIZE), mode="area").round().to(torch.uint8)


def model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net, image = Net(), photograph()
    net(image)  # statistics of batch norm
    return net.eval(), image


def serve(folder: Path) -> tuple["subprocess.Popen[str]", tuple[str, int], Path]:
    """Starts a server on a free port; returns the process, its address, and its key file."""
    key = folder / "atoll.key"
    command = [sys.executable, "-m", "atoll.cli", "serve", "--listen", "127.0.0.1:0", "--key-file", str(key)]
    process = subprocess.Popen([*command, "--cache", str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            host, _, port = line.split()[2].rpartition(":")
            return process, (host, int(port)), key
    raise RuntimeError(f"the server ended with status {process.wait()}")


def measure(session: atoll.infer.Session, image: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Returns the median time of some runs, and the answer."""
    answer = session(image)  # warm
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        answer = session(image)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[RUNS // 2], answer


def is_the_models(answer: torch.Tensor, exact: torch.Tensor, alone: torch.Tensor) -> bool:
    """Returns whether it deviates from the float64 model by at most twice as much as the undivided float32 model."""
    allowed = 2 * (alone - exact).abs().max() + 1e-6 * exact.abs().max()
    return bool((answer - exact).abs().max() <= allowed and answer.argmax() == exact.argmax())


def run() -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the measurements, and what is wrong."""
    net, image = model()
    with torch.no_grad():
        alone, exact = net(image), copy.deepcopy(net).double()(image)
    rows, failures = [], []
    link = Trace(1.0, [LINK_MBIT * 1e6 / 8])
    with tempfile.TemporaryDirectory() as folder:
        process, target, key = serve(Path(folder))
        try:
            with Relay(target, link) as relay:
                address = "{}:{}".format(*relay.address())
                for policy in POLICIES:
                    with atoll.infer.Session(
                        net, (image,), server=address, key_file=key, policy=policy, device="sim"
                    ) as session:  # fmt: skip
                        if policy != "local" and not session.wait_until_ready(READY_SECONDS):
                            return rows, [f"the server does not answer: {session.report()['link']['text']}"]
                        seconds, answer = measure(session, image)
                        assert session.last is not None
                        rows.append({"policy": policy, "seconds": seconds, **vars(session.last) | {"seconds": seconds}})
                        if not is_the_models(answer, exact, alone):
                            failures.append(f"the answer of {policy} is not the model's")
                        if policy == POLICIES[-1]:
                            failures += after_a_kill(session, process, image, exact, alone)
        finally:
            process.kill()
            process.wait()
    return rows, failures


def after_a_kill(
    session: atoll.infer.Session, process: "subprocess.Popen[str]", image: torch.Tensor, exact: torch.Tensor,
    alone: torch.Tensor,
) -> list[str]:  # fmt: skip
    process.send_signal(signal.SIGKILL)
    process.wait()
    begin = time.perf_counter()
    answer = session(image)
    print(f"The server was killed: the next answer came from the robot after {time.perf_counter() - begin:.3f} s.\n")
    return [] if is_the_models(answer, exact, alone) else ["the answer without a server is not the model's"]


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"One photograph of {SIZE} x {SIZE} over {LINK_MBIT} Mbit/s", title_justify="left")
    for name in ("policy", "plan", "answered by", "ms", "predicted", "bound", "bytes up", "bytes down"):
        table.add_column(name, justify="left" if name in ("policy", "plan", "answered by") else "right")
    for row in rows:
        times = [f"{row[name] * 1e3:.1f}" if row[name] else "-" for name in ("seconds", "predicted", "bound")]
        table.add_row(row["policy"], row["plan"], row["origin"], *times, str(row["up_bytes"]), str(row["down_bytes"]))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(
        "No division can undercut the bound at the estimated rate. The robot is a modelled device; the bytes are real."
    )


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    begin = time.monotonic()
    print("Dividing one inference between a robot and a server", flush=True)
    rows, failures = run()
    show(rows)
    times = {row["policy"]: row["seconds"] for row in rows}
    if not failures and times["auto"] > 1.1 * min(times.values()):
        failures.append(f"auto takes {times['auto'] * 1e3:.0f} ms, more than the best of the others")
    if failures:
        print(f"\nAtoll: SPLIT DEMO FAILED: {'; '.join(failures)}", flush=True)
        return 1
    faster = times["local"] / times["auto"]
    print(
        f"\nAtoll: split demo passed: the model's own answers, {faster:.2f}x as fast as the robot alone, "
        f"{time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
