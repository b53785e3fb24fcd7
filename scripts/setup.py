# SPDX-License-Identifier: Apache-2.0
"""Prepares a checkout: Debian packages, .venv with pinned Python packages, the C++ build, Atoll installed.

Each step is skipped if the content of what it depends on has not changed. `--packages TIER` only prepares what that
tier needs in addition: Debian packages, and for `verify` the frameworks in an environment of their own."""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

from common import BUILD, CPUS, ROOT, VENV, VENV_BIN, content_hash, fail, files_under, run, run_logged, say

RELEASE = BUILD / "release"
FRAMEWORKS = BUILD / "frameworks"
PIP_INSTALL: list[str | Path] = [VENV_BIN / "python", "-m", "pip", "install"]
PIP_INSTALL += ["--disable-pip-version-check", "--no-input"]
BUILD_INPUTS = ["CMakeLists.txt", "CMakePresets.json", "cmake", "src", "tests", "bench/fleet", "bench/split",
                "pyproject.toml", "python", "scripts/build_backend.py", "scripts/torch_requirement.py", "README.md",
                "LICENSE"]  # fmt: skip


def listed(tier: str) -> list[str]:
    lines = (ROOT / "scripts/debian-packages.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [name for name, row_tier in rows if row_tier == tier]


def packages_of(tier: str) -> list[str]:
    packages = listed(tier)
    if tier == "build" and sys.prefix == sys.base_prefix == "/usr":
        packages += ["python3-dev", "python3-venv"]
    return packages


def words_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def missing(packages: list[str]) -> list[str]:
    """Returns the packages that are not installed: "NAME" is for this machine's architecture, "NAME:arm64" for
    another."""
    installed = words_of("dpkg-query", "-W", "-f=${Package}:${Architecture}=${db:Status-Status}\n", *packages)
    native = words_of("dpkg", "--print-architecture")
    return [
        package
        for package in packages
        if not any(f"{package}{suffix}=installed" in installed for suffix in ("", ":all", *(f":{n}" for n in native)))
    ]


def ensure_packages(tier: str) -> None:
    if os.environ.get("ATOLL_DEPS_DIR"):
        return  # CMake looks there, and names what is missing
    if shutil.which("dpkg-query") is None:
        say("this system is not Debian: packages are not checked, CMake will name what is missing")
        return
    absent = missing(packages_of(tier))
    if not absent:
        return
    known = words_of("dpkg", "--print-architecture") + words_of("dpkg", "--print-foreign-architectures")
    foreign = sorted({package.partition(":")[2] for package in absent} - {"", *known})
    steps = [["dpkg", "--add-architecture", architecture] for architecture in foreign]
    if foreign or not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
        steps += [["apt-get", "update"]]
    steps += [["apt-get", "install", "-y", "--no-install-recommends", "--no-remove", *absent]]
    if os.geteuid() != 0:
        commands = "\n  ".join(" ".join(step) for step in steps)
        raise fail(f"Debian packages are missing. Please run, as root:\n  {commands}")
    say(f"installing Debian packages: {' '.join(absent)}")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    for step in steps:
        run_logged(step, BUILD / "logs/apt.log", " ".join(step))


def up_to_date(stamp: Path, key: str) -> bool:
    return stamp.is_file() and stamp.read_text() == key


def check_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - `make` may find any Python
        raise fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make setup PYTHON=python3.11")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise fail(f"{sys.executable} has no C headers (Python.h): install its development package")


def ensure_venv() -> None:
    requirements = ROOT / "requirements.txt"
    stamp = VENV / "atoll-requirements.stamp"
    key = content_hash([requirements], sys.version, sys.base_prefix, str(VENV))
    if up_to_date(stamp, key):
        return
    if not stamp.is_file() or not (VENV_BIN / "python").exists():
        say(f"creating .venv with Python {sys.version.split()[0]}")
        run_logged([sys.executable, "-m", "venv", "--clear", VENV], BUILD / "logs/venv.log", "creating .venv")
    say("installing Python packages into .venv (a minute or two the first time)")
    run_logged([*PIP_INSTALL, "--requirement", requirements], BUILD / "logs/pip.log", "pip install")
    stamp.write_text(key)


def ensure_frameworks() -> None:
    """Makes build/frameworks: the packages of requirements-verify.txt on top of .venv's. In .venv itself accelerate,
    transformers and Lightning would find these packages and behave differently than for users without them."""
    requirements, pins = ROOT / "requirements-verify.txt", ROOT / "requirements.txt"
    stamp = FRAMEWORKS / "requirements.stamp"
    key = content_hash([requirements, pins], sys.version, str(VENV))
    if up_to_date(stamp, key):
        return
    say("installing the frameworks of longer tests into build/frameworks")
    run_logged([VENV_BIN / "python", "-m", "venv", "--clear", FRAMEWORKS], BUILD / "logs/frameworks-venv.log", "venv")
    packages = [sysconfig.get_path("purelib", "venv", {"base": str(folder)}) for folder in (FRAMEWORKS, VENV)]
    Path(packages[0], "of-atoll.pth").write_text(f"{packages[1]}\n")
    install: list[str | Path] = [FRAMEWORKS / "bin/python", *PIP_INSTALL[1:]]
    install += ["--requirement", requirements, "--constraint", pins]
    run_logged(install, BUILD / "logs/frameworks.log", "pip install")
    stamp.write_text(key)


def build_key() -> str:
    compiler = os.environ.get("CXX", "c++")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    flags = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "LDFLAGS", "ATOLL_DEPS_DIR")]
    suffixes = [
        ".cpp",
        ".h",
        ".hpp",
        ".txt",
        ".cmake",
        ".in",
        ".map",
        ".fbs",
        ".json",
        ".toml",
        ".py",
        ".pyi",
        ".md",
        "",
    ]
    inputs = [path for path in files_under(BUILD_INPUTS, suffixes) if "tests/python" not in path.as_posix()]
    if shutil.which("dpkg-query"):  # so that an added optional package, or headers of another version, are found
        known = ["all", *words_of("dpkg", "--print-architecture")]
        versions = words_of("dpkg-query", "-W", "-f=${Architecture}:${Package}=${Version}\n", *listed("build"))
        flags += [version for version in versions if version.partition(":")[0] in known]
    return content_hash(inputs, version, *flags, (VENV / "atoll-requirements.stamp").read_text())


def package_targets() -> list[str]:
    """Returns the targets that the package consists of."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        targets: list[str] = tomllib.load(file)["tool"]["scikit-build"]["build"]["targets"]
    return targets


def ensure_build(with_tests: bool) -> bool:
    """Builds and installs if a source has changed; returns whether there was anything to do. C++ tests are optional:
    they take as long to build as everything else, and only testing needs them."""
    stamps = [VENV / "atoll-build.stamp", *([VENV / "atoll-tests.stamp"] if with_tests else [])]
    key = build_key()
    if all(up_to_date(stamp, key) for stamp in stamps) and (RELEASE / "CTestTestfile.cmake").is_file():
        return False
    for stamp in stamps:
        stamp.unlink(missing_ok=True)
    what = "the library, its tests" if with_tests else "the library"
    say(f"building {what} and the PyTorch glue in build/release on {CPUS} cores")
    if run([VENV_BIN / "cmake", "--preset", "release", "--log-level=NOTICE"]) != 0:
        raise fail("the CMake configuration failed (its message is above)")
    targets = [] if with_tests else ["--target", *package_targets()]
    if run([VENV_BIN / "cmake", "--build", RELEASE, "--parallel", str(CPUS), *targets]) != 0:
        raise fail("the build failed (the compiler's message is above)")
    say("installing Atoll into .venv")
    # The wheel takes the files just built: same folder, same settings as the preset.
    settings = ["build-dir=build/release", "cmake.define.ATOLL_TESTS=ON", "cmake.define.ATOLL_WERROR=ON"]
    options = ["--no-build-isolation", "--no-deps", "--force-reinstall"]
    options += [part for setting in settings for part in ("--config-settings", setting)]
    run_logged([*PIP_INSTALL, *options, "."], BUILD / "logs/install.log", "pip install .")
    for stamp in stamps:
        stamp.write_text(key)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--packages", metavar="TIER", help="build, check, verify, aarch64 or bench: prepare only what that tier needs"
    )
    parser.add_argument("--no-tests", action="store_true", help="do not build the C++ tests")
    options = parser.parse_args()
    begin = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("w") as lock:  # two `make` at once take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        if options.packages:
            ensure_packages(options.packages)
            if options.packages == "verify":
                ensure_frameworks()
            return
        ensure_packages("build")
        check_python()
        ensure_venv()
        if ensure_build(with_tests=not options.no_tests):
            say(f"ready: .venv holds Atoll ({time.monotonic() - begin:.0f} s)")
        else:
            say("nothing has changed, .venv is up to date")


if __name__ == "__main__":
    main()
