# SPDX-License-Identifier: Apache-2.0
"""Runs every formatter and checker; `--fix` lets the formatters repair what they can.

Runs clang-format, clang-tidy on each file without PyTorch, through the compiler alone those of their headers that no
source includes first, ruff, mypy, the structure tests, and the list and audit of packages. Names all findings, then
fails if there was one."""

import argparse
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import supply_chain
from common import BUILD, CPUS, ROOT, VENV_BIN, content_hash, fail, files_under, say, tool_environment

CPP_FOLDERS = ["src", "tests", "bench", "examples"]
PYTHON_FOLDERS = ["python", "scripts", "tests", "bench", "examples"]
ANALYSES = "clang-analyzer-core.*,clang-analyzer-cplusplus.*,clang-analyzer-unix.*"
CACHE = BUILD / "check"
FILES = CACHE / "files"  # compile commands for single sources: release builds compile several as one


def clang_format() -> str:
    found = shutil.which("clang-format-14")
    if found is None:
        raise fail("clang-format-14 is missing: python3 scripts/setup.py --packages check")
    return found


def output_of(command: list[str | Path]) -> str:
    """Returns what `command` prints if it fails, or an empty string if it succeeds."""
    texts = [str(part) for part in command]
    done = subprocess.run(texts, cwd=ROOT, env=tool_environment(), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return done.stdout + done.stderr or f"{texts[0]} ended with status {done.returncode}"


def cached(kind: str, path: Path, key: str, check: Callable[[], str]) -> str:
    """Runs `check` for `path` unless it has passed before with the same key."""
    stamp = CACHE / kind / path.relative_to(ROOT).as_posix().replace("/", "__")
    if stamp.is_file() and stamp.read_text() == key:
        return ""
    result = check()
    if not result:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
    return result


def in_parallel(check: Callable[[Path], str], files: list[Path]) -> str:
    with ThreadPoolExecutor(CPUS) as pool:
        return "".join(pool.map(check, files))


def without_pytorch(path: Path) -> bool:
    return "pytorch" not in path.relative_to(ROOT).parts


def cpp_files(suffixes: list[str]) -> list[Path]:
    return files_under([name for name in CPP_FOLDERS if (ROOT / name).is_dir()], suffixes)


def check_clang_format(fix: bool) -> str:
    files = cpp_files([".cpp", ".h"])
    mode = ["-i"] if fix else ["--dry-run", "--Werror"]
    return output_of([clang_format(), *mode, *files]) if files else ""


@functools.cache
def compile_commands() -> list[dict[str, str]]:
    """Returns the compile command of each source of libatoll; configures a build of single files and generates its
    headers."""
    settings = [f"-DATOLL_{part}=OFF" for part in ("UNITY", "TESTS", "PYTORCH")]
    header = "generated/atoll/infer/wire/messages_generated.h"
    configure: list[str | Path] = [
        VENV_BIN / "cmake",
        "--preset",
        "release",
        "-B",
        FILES,
        "--log-level=NOTICE",
        *settings,
    ]
    found = output_of(configure) or output_of([VENV_BIN / "cmake", "--build", FILES, "--target", header])
    if found:
        raise fail(f"the sources could not be configured for the checks:\n{found}")
    commands: list[dict[str, str]] = json.loads((FILES / "compile_commands.json").read_text())
    return commands


def run_clang_tidy(name: str, *options: str) -> str:
    compiled = {Path(entry["file"]) for entry in compile_commands()}
    sources = [path for path in files_under(["src"], [".cpp"]) if path in compiled and without_pytorch(path)]
    key = content_hash(
        [*files_under(["src"], [".h"]), ROOT / ".clang-tidy", ROOT / "requirements.txt"], " ".join(options)
    )
    # Without these options clang-tidy would report the compiler's warnings as errors.
    command: list[str | Path] = [VENV_BIN / "clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                                 "--extra-arg=-Wno-error", *options, "-p", FILES]  # fmt: skip

    def tidy(path: Path) -> str:
        return cached(name, path, content_hash([path], key), lambda: output_of([*command, path]))

    return in_parallel(tidy, sources)


def check_clang_tidy(_fix: bool) -> str:
    return run_clang_tidy("clang-tidy")


def check_clang_analyzer(_fix: bool) -> str:
    return run_clang_tidy("clang-analyzer", f"--checks=-*,{ANALYSES}")


def compiled_first() -> set[str]:
    """Returns headers that a source includes before anything else, which clang-tidy therefore compiles by
    themselves."""
    first = set()
    for entry in compile_commands():
        includes = re.search(r'^#include ([<"]\S+)', Path(entry["file"]).read_text(), re.MULTILINE)
        if includes:
            first.add(includes[1].strip('<">'))
    return first


def check_headers(_fix: bool) -> str:
    proven = compiled_first()
    headers = [path for path in files_under(["src"], [".h"]) if without_pytorch(path)]
    key = content_hash(headers)
    headers = [path for path in headers if path.relative_to(ROOT / "src").as_posix() not in proven]

    def compile_alone(path: Path) -> str:
        include = path.relative_to(ROOT / "src").as_posix()
        flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", "src", "-include", include]
        return cached("headers", path, key, lambda: output_of(["g++", *flags, "-x", "c++", os.devnull]))

    return in_parallel(compile_alone, headers)


def python_folders() -> list[str]:
    return [name for name in PYTHON_FOLDERS if (ROOT / name).is_dir()]


def check_ruff(fix: bool) -> str:
    ruff = VENV_BIN / "ruff"
    lint = output_of([ruff, "check", "--quiet", *(["--fix"] if fix else []), *python_folders()])
    return lint + output_of([ruff, "format", "--quiet", *([] if fix else ["--diff"]), *python_folders()])


def check_mypy(_fix: bool) -> str:
    return output_of([VENV_BIN / "python", "-m", "mypy"])


def check_structure(_fix: bool) -> str:
    return output_of([VENV_BIN / "python", "-m", "pytest", "-q", "tests/structure"])


def check_gpu_plan(_fix: bool) -> str:
    """`make gpu` prints its steps on any machine, even without site packages, as if nothing were installed yet."""
    return output_of([VENV_BIN / "python", "-S", ROOT / "scripts/gpu.py", "--plan"])


def check_supply_chain(_fix: bool) -> str:
    return supply_chain.check()


CHECKS = {
    "clang-format": check_clang_format,
    "ruff": check_ruff,
    "structure": check_structure,
    "mypy": check_mypy,
    "gpu-plan": check_gpu_plan,
    "supply-chain": check_supply_chain,
    "headers": check_headers,
    "clang-tidy": check_clang_tidy,
}
# These run in parallel; each of the others uses all processors by itself.
SINGLE_THREADED = {"structure", "mypy", "gpu-plan", "supply-chain"}
# Runs only if it is named, as in `make soak`.
LONG_CHECKS = {"clang-analyzer": check_clang_analyzer}


def run_check(name: str, fix: bool) -> bool:
    """Runs a check and prints its result; returns whether it passed."""
    begin = time.monotonic()
    findings = {**CHECKS, **LONG_CHECKS}[name](fix)
    say(f"{name}: {'FAILED' if findings else 'good'} ({time.monotonic() - begin:.0f} s)")
    if findings:
        sys.stdout.write(findings if findings.endswith("\n") else findings + "\n")
    return not findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="let clang-format and ruff change the files")
    known = [*CHECKS, *LONG_CHECKS]
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"only these: {', '.join(known)}")
    options = parser.parse_args()
    unknown = [name for name in options.checks if name not in known]
    if unknown:
        parser.error(f"unknown check {unknown[0]}: choose from {', '.join(known)}")
    failed = []
    for is_single, group in itertools.groupby(options.checks or CHECKS, SINGLE_THREADED.__contains__):
        names = list(group)
        with ThreadPoolExecutor(CPUS if is_single else 1) as pool:
            good = pool.map(lambda name: run_check(name, options.fix), names)
            failed += [name for name, is_good in zip(names, good, strict=True) if not is_good]
    if failed:
        raise fail(f"checks failed: {', '.join(failed)} (scripts/check.py --fix repairs formatting)")
    say("all checks passed")


if __name__ == "__main__":
    main()
