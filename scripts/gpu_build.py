# SPDX-License-Identifier: Apache-2.0
"""Builds Atoll for the running Python in build/gpu, separate from other builds, and installs it into a folder for
PYTHONPATH."""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from common import BUILD, CPUS, ROOT, fail, say
from setup import package_targets

PACK = BUILD / "gpu-pack"
NO_PACK = (
    "On a machine with Debian's packages, `make setup` prepares them. For one without, make the folder build/gpu-pack "
    "on a Debian machine (`make gpu-pack`) and copy it here"
)
PROBE = """import json, torch
accelerator = torch.accelerator.current_accelerator()
count = torch.accelerator.device_count() if accelerator is not None else 0
print(json.dumps([accelerator.type if count else "", count]))"""


@dataclass(frozen=True)
class Ready:
    """A built Atoll: the paths to add to PYTHONPATH, and the time of the build."""

    paths: tuple[Path, ...]
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def environment(self, **more: str) -> dict[str, str]:
        """Returns the environment for programs that use it; as in tests, the caller's own settings have no
        influence."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATOLL_", "TORCHELASTIC_"))}
        old = [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
        kept["PYTHONPATH"] = os.pathsep.join([*map(str, self.paths), *old])
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        if (libraries := missing_libraries()) is not None:
            old = [kept["LD_LIBRARY_PATH"]] if kept.get("LD_LIBRARY_PATH") else []
            kept["LD_LIBRARY_PATH"] = os.pathsep.join([*old, str(libraries)])
        return kept | more


def torch_version() -> str:
    try:
        return metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        raise fail(
            f"{sys.executable} has no torch: install one into it, or name another Python: make gpu PYTHON=/path/python3"
        ) from None


def folder(where: Path = BUILD / "gpu") -> Path:
    """Returns the build folder of this Python and its torch."""
    return where / f"cp{sys.version_info.major}{sys.version_info.minor}-torch{torch_version()}"


def missing_libraries() -> Path | None:
    """Returns the pack's folder of libraries if this system lacks OpenSSL 3, otherwise None."""
    try:
        ctypes.CDLL("libssl.so.3")
    except OSError:
        found = list(PACK.glob("deps/usr/lib/*/libssl.so.3"))
        return found[0].parent if found else None
    return None


def packed_site() -> tuple[Path, ...]:
    site = PACK / "site"
    return (site,) if site.is_dir() else ()


def require_tools() -> dict[str, str]:
    """Returns the environment of the build; exits naming the tools that are missing."""
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise fail(f"{sys.executable} has no C headers (Python.h): install its development package")
    environment = {**os.environ}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    compiler = environment.get("CXX", "c++")
    for tool in ("cmake", "ninja", compiler):
        if shutil.which(tool, path=environment["PATH"]) is None:
            way = f"{sys.executable} -m pip install {tool}" if tool != compiler else "install g++ 12 or newer"
            raise fail(f"{tool} is missing: {way}")
    return environment


def configure(target: Path, environment: dict[str, str], log: Path, library: Path | None) -> None:
    settings = ["CMAKE_BUILD_TYPE=Release", "ATOLL_PYTORCH=ON", "ATOLL_TESTS=OFF", "ATOLL_WERROR=OFF"]
    settings += [f"Python_EXECUTABLE={sys.executable}", "CMAKE_INSTALL_RPATH_USE_LINK_PATH=ON"]
    if library is not None:
        settings.append(f"ATOLL_LIBRARY={library}")
    if PACK.is_dir() and not environment.get("ATOLL_DEPS_DIR"):
        settings.append(f"ATOLL_DEPS_DIR={PACK / 'deps'}")
        for program in (PACK / "deps/usr/bin").iterdir():
            program.chmod(0o755)  # copies may have lost it
    words = ["cmake", "-S", str(ROOT), "-B", str(target), "-G", "Ninja", *(f"-D{setting}" for setting in settings)]
    run(words, environment, log, "configuring", "" if PACK.is_dir() else f". {NO_PACK}")


def run(words: list[str], environment: dict[str, str], log: Path, what: str, advice: str = "") -> None:
    with log.open("ab") as output:
        place = output.tell()
        status = subprocess.call(words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if status != 0:
        with log.open("rb") as file:
            file.seek(place)
            lines = file.read().decode(errors="replace").splitlines()
        wrong = [line for line in lines if "error" in line.lower() or "Missing:" in line][:10]
        raise fail("\n".join([f"{what} failed (exit status {status}){advice}. All of it: {log}", *wrong, *lines[-15:]]))


def install(target: Path, environment: dict[str, str], log: Path) -> Path:
    """Installs the build; returns the folder with the package and its metadata."""
    site = target / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "python/atoll", site / "atoll", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    run(
        ["cmake", "--install", str(target), "--component", "python", "--prefix", str(site)],
        environment,
        log,
        "installing",
    )
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    facts: dict[str, str] = {}
    exec((site / "atoll/_build_info.py").read_text(), facts)
    described = site / f"atoll-{facts['VERSION']}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: atoll\nVersion: {facts['VERSION']}\n")
    points = {"console_scripts": project["scripts"], **project["entry-points"]}
    sections = ["\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in rows.items())]) for group, rows in points.items()]
    (described / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
    return site


def build(log: Path, library: Path | None = None, where: Path = BUILD / "gpu") -> Ready:
    """Builds what has changed, and installs it, with an existing libatoll if one is given."""
    target, environment = folder(where), require_tools()
    say(f"building for Python {sys.version.split()[0]} and torch {torch_version()} on {CPUS} cores: {target}")
    before, begin = os.times(), os.times().elapsed
    configure(target, environment, log, library)
    targets = [name for name in package_targets() if library is None or name != "atoll"]
    words = ["cmake", "--build", str(target), "--parallel", str(CPUS), "--target", *targets]
    run(words, environment, log, "the build")
    site = install(target, environment, log)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Ready((site, *packed_site()), after.elapsed - begin, used)


def installed() -> Ready:
    """Returns the Atoll that this Python already has."""
    ready = Ready(packed_site())
    command = [sys.executable, "-c", "import atoll.backend"]
    environment = ready.environment()
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise fail(f"--installed: {sys.executable} has no Atoll for its torch {torch_version()}: {why}")
    return ready


def find_device(wanted: str) -> str:
    """Returns the type of device to try: the one that PyTorch finds, which must be `wanted` if that is given. PyTorch
    is not queried for "sim", which Atoll provides itself."""
    if wanted == "sim":
        return wanted
    import json

    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        raise fail(f"torch {torch_version()} cannot be used: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    found, _count = json.loads(done.stdout.splitlines()[-1])
    if not found:
        raise fail(
            f"torch {torch_version()} finds no device in this machine: there is none, its driver is missing, or this "
            "PyTorch is built for CPUs. `make gpu GPU_ARGS='--device sim'` rehearses with a simulated device"
        )
    if wanted and wanted != found:
        raise fail(f"--device {wanted}: torch {torch_version()} finds devices of type {found} here")
    return str(found)
