# SPDX-License-Identifier: Apache-2.0
"""Split inference of one published network with random weights: the server computes on the device, the robot on one
core of this machine, and between them is a link of 10 to 1000 Mbit/s. By policy: local, offload, auto, and cut, which
divides between operators and never their rows.

The link is a pair of network namespaces with a shaper where the system lets us make them, else a relay in user space;
each row says which. Every answer is compared with the model in float64."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trying

RATES = {"resnet152": (10, 40, 93, 1000)}  # Mbit/s, by network
FEW = (40,)  # of the others
OPEN = 20_000  # Mbit/s while weights are uploaded, which is not part of any inference
POLICIES = ("offload", "cut", "auto")
ROBOT = Path(__file__).with_name("split_robot.py")
SERVER_SECONDS = 60.0


def prepared(name: str, folder: Path, quick: bool) -> None:
    """Writes the captured model, an input, and the model's answer to it into the folder."""
    import torch

    from atoll.infer import capture
    from networks import example

    module, args, kwargs = example(name, full=not quick)
    with torch.no_grad():
        alone = module(*args, **kwargs)
        wide = [each.double() if each.is_floating_point() else each for each in args]
        exact = copy.deepcopy(module).double()(*wide, **kwargs)
    model = str(capture(module, args, kwargs).save(folder / "models"))
    about = {"model": model, "args": args, "kwargs": kwargs, "alone": alone, "exact": exact}
    torch.save(about, folder / "example.pt")


class Link:
    """One link to the server, whose rate can be changed. `prefix` goes before the commands of server and robot."""

    def __init__(self) -> None:
        self.name, self.prefixes, self.host = "relay in user space", ((), ()), "127.0.0.1"
        self._shaped: Any = None
        self._relay: Any = None
        self._port = 0

    def open(self) -> None:
        """Uses network namespaces if they can be created."""
        from netns import ADDRESSES, ShapedLink

        shaped = ShapedLink(OPEN * 1_000_000)
        try:
            self._shaped = shaped.__enter__()
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            print(f"cannot create network namespaces: {error}", flush=True)
            return
        self.name, self.host = "network namespaces and tc", ADDRESSES[0]
        self.prefixes = (shaped.prefix(0), shaped.prefix(1))

    def reach(self, port: int) -> None:
        self._port = port

    def set_rate(self, mbit: int) -> str:
        """Sets the rate; returns the address at which the robot reaches the server from now on."""
        if self._shaped is not None:
            self._shaped.set_rate(mbit * 1_000_000)
            return f"{self.host}:{self._port}"
        from atoll.infer.planning.relay import Relay
        from atoll.infer.planning.trace import Trace

        if self._relay is not None:
            self._relay.stop()
        trace = None if mbit == OPEN else Trace(1.0, [mbit * 1e6 / 8])
        self._relay = Relay((self.host, self._port), trace).__enter__()
        return "{}:{}".format(*self._relay.address())

    def close(self) -> None:
        if self._relay is not None:
            self._relay.stop()
        if self._shaped is not None:
            self._shaped.__exit__()


def place_of(trial: trying.Trial) -> str:
    """Returns the server's device: the CPU if the trial's device is a simulated one."""
    return "cpu" if trial.stands_in else f"{trial.device}:0"


@contextmanager
def server(place: str, folder: Path, link: Link, core: int) -> Iterator[int]:
    """Runs the server on all cores but the robot's; yields its port."""
    cores = sorted(os.sched_getaffinity(0) - {core}) or [core]
    command = [*link.prefixes[0], "taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "atoll.cli"]
    command += ["serve", "--listen", f"{link.host}:0", "--key-file", str(folder / "key"), "--device", place]
    command += ["--threads", str(len(cores)), "--cache", str(folder / "cache")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(SERVER_SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("listening on ")), "")
        timer.cancel()
        if not line:
            raise RuntimeError(f"atoll serve --device {place} ended: its message is in the log")
        yield int(line.split()[2].rpartition(":")[2])
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def robot(
    folder: Path, link: Link, address: str, policies: Sequence[str], core: int, quick: bool
) -> list[dict[str, Any]]:
    """Runs a robot on one core with each policy; raises RuntimeError if an answer is wrong."""
    command = [*link.prefixes[1], "taskset", "-c", str(core), sys.executable, str(ROBOT), str(folder), address]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    words = [*command, ",".join(policies), *(["--quick"] if quick else [])]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        raise RuntimeError(f"the robot ended with status {done.returncode}; its message is in the log")
    wrong = [row["policy"] for row in rows if not row["right"]]
    if wrong:
        raise RuntimeError(f"answers of {', '.join(wrong)} are not the model's")
    return rows


def tell(trial: trying.Trial, name: str, link: Link, rate: int, rows: list[dict[str, Any]], local: float) -> None:
    for row in rows:
        trial.add(model=name, link=link.name, mbit=rate, server=place_of(trial), local_s=local, **row)
    texts = [f"{row['policy']} {row['seconds'] * 1e3:.0f} ms (predicted {row['predicted'] * 1e3:.0f}, {row['plan']})"
             for row in rows]  # fmt: skip
    faster = local / next(row["seconds"] for row in rows if row["policy"] == "auto")
    trial.add(
        f"{rate} Mbit/s by {link.name}: local {local * 1e3:.0f} ms, {', '.join(texts)}; auto is {faster:.2f} times as "
        "fast as the robot alone"
    )


def measure(trial: trying.Trial, name: str, folder: Path) -> None:
    core = max(os.sched_getaffinity(0))
    link = Link()
    trial.check("capturing", lambda: prepared(name, folder, trial.quick))
    if trial.failures:
        return
    link.open()
    try:
        with server(place_of(trial), folder, link, core) as port:
            link.reach(port)
            first = robot(folder, link, link.set_rate(OPEN), ["local", "offload"], core, trial.quick)
            local = first[0]["seconds"]
            for rate in FEW if trial.quick else RATES.get(name, FEW):
                address = link.set_rate(rate)
                rows = trial.check(
                    f"{rate} Mbit/s", lambda a=address: robot(folder, link, a, POLICIES, core, trial.quick)
                )
                if rows:
                    tell(trial, name, link, rate, rows, local)
    finally:
        link.close()


def main() -> None:
    trial, given = trying.begin(__doc__, "network")
    with tempfile.TemporaryDirectory(prefix="atoll-split-") as folder:
        trial.check("the server and the robot", lambda: measure(trial, given.network, Path(folder)))
    trial.end()


if __name__ == "__main__":
    main()
