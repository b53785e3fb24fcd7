# SPDX-License-Identifier: Apache-2.0
"""The time from a rank's death to the next correct step of the training, for each way to go on."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers
from atoll.bench import machine
from reliability_faults import RANKS, VICTIM
from reliability_trials import Quiet, events_of, is_running, kill, wait_until
from results import Settings, say, table

PROGRAM = Path(__file__).with_name("reliability_training.py")
ROUNDS = 7
STEPS = 20  # before the fault
START_S = 120.0
AGAIN_S = 60.0
END_S = 10.0
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Way:
    """FOLDER in the command is where the training keeps its files."""

    name: str
    text: str
    command: Sequence[str] = field(repr=False)
    left: int = RANKS  # the number of ranks of the next step
    own_store: bool = False  # torch elastic's own store; that of the ranks is new with each start

    def start(self, folder: Path) -> "subprocess.Popen[bytes]":
        command = [part.replace("FOLDER", str(folder)) for part in self.command]
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        environment["OMP_NUM_THREADS"] = "1"  # torchrun sets it too, with a message
        if self.own_store:
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    start_new_session=True)  # fmt: skip


def ways() -> tuple[list[Way], dict[str, str]]:
    """Returns all ways that this machine has, and why others are missing."""
    ranks = f"--nproc-per-node={RANKS}"
    atoll = [sys.executable, "-m", "atoll.cli", "run", ranks]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks, "--max-restarts=1"]
    program = [str(PROGRAM), "FOLDER"]
    found = [
        Way("shrink", "`atoll run --on-failure=shrink`: the others go on",
            [*atoll, "--on-failure=shrink", *program, "shrink"], RANKS - 1),
        Way("restart", "`atoll run --max-restarts`: all start again", [*atoll, "--max-restarts=1", *program, "atoll"]),
        Way("torchrun", "`torchrun --max-restarts` with Gloo, as it comes", [*torchrun, *program, "gloo"]),
        Way("torchrun_store", "the same with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: all start again",
            [*torchrun, *program, "gloo"], own_store=True),
    ]  # fmt: skip
    left_out: dict[str, str] = {}
    for name, version, get in (("ompi4", "4.1", peers.open_mpi_4), ("ompi5", "5.0", peers.open_mpi_5)):
        try:
            mpi = get()
            run = [*mpi.launch([], RANKS), "-np", str(RANKS), str(mpi.compiled("mpi_training")), "FOLDER"]
        except (RuntimeError, OSError) as error:
            left_out[name] = str(error).splitlines()[0][:300]
            continue
        loop = ["/bin/sh", "-c", 'until "$@"; do :; done', "sh", *run]
        found.append(Way(name, f"Open MPI {version}: `mpirun` in a loop", loop))
    return found, left_out


def steps_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Returns the steps that a rank has done so far. Raises RuntimeError for a wrong result."""
    events = events_of(folder, rank)
    wrong = next((event for event in events if event["event"] == "wrong"), None)
    if wrong:
        raise RuntimeError(f"rank {rank} computed something wrong in step {wrong['step']}: {wrong['text']}")
    return events


def first_after(folder: Path, way: Way, rank: int, at: float, old: set[int]) -> dict[str, Any] | None:
    """Returns a rank's first step in the group, or the process, that followed the fault."""
    for step in steps_of(folder, rank):
        if step["at"] > at and step["ranks"] == way.left and (way.left < RANKS or step["pid"] not in old):
            return step
    return None


def round_trip(way: Way) -> dict[str, Any]:
    """Runs one job that loses a rank; returns the seconds until all ranks have done the next step correctly, and its
    number; None if that takes longer than AGAIN_S."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = way.start(folder)
        try:
            return watch(way, folder)
        except RuntimeError as error:
            words = (folder / "log").read_text(errors="replace").strip()[-800:]
            raise RuntimeError(f"{way.name}: {error}: {words}") from error
        finally:
            end(launcher, folder)


def watch(way: Way, folder: Path) -> dict[str, Any]:
    all_ranks = range(RANKS)
    if not wait_until(lambda: all(len(steps_of(folder, rank)) >= STEPS for rank in all_ranks), START_S):
        raise RuntimeError(f"not all ranks came to step {STEPS} within {START_S:g} s")
    pids = {rank: int(steps_of(folder, rank)[-1]["pid"]) for rank in all_ranks}
    done = max(steps_of(folder, rank)[-1]["step"] for rank in all_ranks)
    at = time.monotonic()
    os.kill(pids[VICTIM], signal.SIGKILL)
    left = [rank for rank in all_ranks if way.left == RANKS or rank != VICTIM]
    old = set(pids.values())

    def all_again() -> bool:
        return all(first_after(folder, way, rank, at, old) for rank in left)

    if not wait_until(all_again, AGAIN_S):
        return {"seconds": None, "done": done, "next": None}
    steps = [step for rank in left if (step := first_after(folder, way, rank, at, old))]
    if min(step["step"] for step in steps) > done + 2:
        raise RuntimeError(f"after step {done} the next one was {steps[0]['step']}")
    return {"seconds": max(step["at"] for step in steps) - at, "done": done, "next": steps[0]["step"]}


def processes_of(folder: Path) -> list[int]:
    """Returns all processes with the folder in their command: the launchers, and ranks that have recorded nothing
    yet."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if str(folder).encode() in path.read_bytes() and is_running(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def end(launcher: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kills everything that is left of the job. The launcher is killed first, so that it does not restart the job."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()

    def is_over() -> bool:
        left = processes_of(folder)
        for pid in left:
            kill(pid)
        return not left

    wait_until(is_over, END_S)


def measure(settings: Settings, quiet: Quiet) -> dict[str, Any]:
    """Measures all ways in turn, round by round; each waits until no other process uses the machine, and records
    whether that was so."""
    found, left_out = ways()
    rounds: dict[str, list[dict[str, Any]]] = {way.name: [] for way in found}
    for _ in range(settings.rounds(ROUNDS)):
        for way in found:
            if rounds[way.name] and all(each["seconds"] is None for each in rounds[way.name]):
                continue
            was_quiet = quiet.came()
            result = round_trip(way)
            is_quiet = was_quiet and machine.cores_used_by_others(0.5) <= machine.BUSY_CORES
            rounds[way.name].append({**result, "busy": not is_quiet})
    rows = [{"way": way.name, "text": way.text, **summarise(rounds[way.name]), "samples": rounds[way.name]}
            for way in found]  # fmt: skip
    for row in rows:
        say(f"fault to next right step, {row['way']}: {seconds_text(row)}")
    return {"rows": rows, "left_out": left_out}


def summarise(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarises the rounds; those measured while other processes used the machine count only if there are no better
    ones."""
    counted = [each for each in samples if not each["busy"]] or samples
    timed = [each["seconds"] for each in counted if each["seconds"] is not None]
    times = {"median_s": statistics.median(timed), "least_s": min(timed), "most_s": max(timed)} if timed else {}
    return {"rounds": len(counted), "none": len(counted) - len(timed),
            "only_busy": all(each["busy"] for each in samples), **times}  # fmt: skip


def seconds_text(row: dict[str, Any]) -> str:
    shown = [f"{row['median_s']:.2f} s ({row['least_s']:.2f} to {row['most_s']:.2f} s)"] if "median_s" in row else []
    shown += [f"none in {AGAIN_S:g} s: {row['none']} of {row['rounds']}"] if row["none"] else []
    return ", ".join(shown + (["busy"] if row["only_busy"] else []))


def report(found: dict[str, Any]) -> str:
    rows = [[row["text"], str(row["rounds"]), seconds_text(row)] for row in found["rows"]]
    return (
        "\n## From the fault to the next right step\n\n"
        f"{RANKS} ranks train 25,000 weights, whose value after each step is known and is compared. Rank {VICTIM} is "
        f"killed after at least {STEPS} steps. Until the last rank has done its next right step, in the group or the "
        "process that came after: median, and in brackets the least and the most. A job that restarts continues from "
        "a checkpoint, made after each step; programs and their libraries are loaded again, which is most of the "
        "time. A job that shrinks continues with one rank less. As torchrun comes, ranks that start again meet at the "
        "store of those before them and find the addresses of these. A job that is not back in "
        f"{AGAIN_S:g} s is not asked again.\n\n"
        f"{table(['', 'rounds', 'time'], rows)}"
    )
