# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one tier (test, verify, soak, aarch64); the last line of its output states the result.

The runners' own summary lines are also kept in build/test-summary.txt, for logs that show several steps."""

import argparse
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import emulated
import fuzzing
import sanitized
from common import BUILD, CPUS, ROOT, VENV_BIN, commit, fail, run, say

FUZZ_SECONDS = 180  # all targets together
# Many tests start several busy threads or processes, but most wait for each other: two at once keep two cores busy.
JOBS = str(max(2, CPUS // 2))
# C++ tests are short, and wait more than they compute; translated or instrumented ones do not.
RELEASE_JOBS = str(2 * CPUS)


@dataclass
class Outcome:
    """One runner's result. `ran` counts tests that passed or failed, not those skipped."""

    name: str
    ran: int = 0
    failed: int = 0
    skipped: int = 0
    broken: str = ""  # why there is no result
    summary: str = ""

    @property
    def good(self) -> bool:
        return not self.broken and self.failed == 0 and self.ran > 0

    def describe(self) -> str:
        return self.broken or f"{self.failed} of {self.ran} {self.name} tests failed"


def read_junit(name: str, path: Path, status: int) -> Outcome:
    """Returns the counts in a JUnit file; a runner that wrote none, or that disagrees with its exit status, is
    broken."""
    if not path.is_file():
        return Outcome(name, broken=f"the {name} runner ended with status {status} and no result")
    root = ElementTree.parse(path).getroot()
    suites = [root] if root.tag == "testsuite" else list(root.iter("testsuite"))

    def total(attribute: str) -> int:
        return sum(int(suite.get(attribute, "0")) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped") + total("disabled")
    outcome = Outcome(name, ran=total("tests") - skipped, failed=failed, skipped=skipped)
    if status != 0 and failed == 0:
        outcome.broken = f"the {name} runner ended with status {status}"
    elif outcome.ran == 0:
        outcome.broken = f"no {name} test ran"
    return outcome


def streamed(command: list[str | Path], keep: str) -> tuple[int, str]:
    """Runs `command` with its output shown; returns the exit status and the last line that matches `keep`."""
    kept = ""
    sys.stdout.flush()
    process = subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r"\s+Start\s+\d+:", line):
            continue  # ctest names each test again when it ends
        sys.stdout.write(line)
        sys.stdout.flush()
        if re.search(keep, line):
            kept = line.strip()
    return process.wait(), kept


def run_ctest(preset: str, name: str) -> Outcome:
    junit = BUILD / preset / "ctest.xml"
    junit.unlink(missing_ok=True)
    jobs = RELEASE_JOBS if preset == "release" else JOBS
    command: list[str | Path] = [VENV_BIN / "ctest", "--preset", preset, "--output-junit", junit, "--parallel", jobs]
    status, summary = streamed(command, r"tests passed")
    outcome = read_junit(name, junit, status)
    outcome.summary = summary
    return outcome


def run_pytest(markers: str | None, name: str) -> Outcome:
    junit = BUILD / "pytest.xml"
    junit.unlink(missing_ok=True)
    command: list[str | Path] = [VENV_BIN / "python", "-m", "pytest", f"--junitxml={junit}"]
    if markers != "soak":  # soak tests measure time and memory
        # Each worker starts with one half of all tests in their order, so that layouts of ranks are started once; of
        # the longer tests a worker takes the next one, beginning with groups of tests that share resources.
        command += ["--numprocesses", JOBS, "--dist", "loadgroup" if markers else "worksteal"]
    if markers:
        command += ["-m", markers, "--timeout=3600"]
    status, summary = streamed(command, r"^=+ .* in [0-9.]+s")
    if markers and status == 5:
        return Outcome(name, broken=f"no {name} test is marked '{markers}'")
    outcome = read_junit(name, junit, status)
    outcome.summary = summary
    return outcome


def run_preset(preset: str) -> Outcome:
    """Builds and runs the C++ tests with a preset of CMakePresets.json."""
    name = f"C++ {preset}"
    say(f"building the C++ tests with the {preset} preset")
    if run([VENV_BIN / "cmake", "--preset", preset, "--log-level=NOTICE"]) != 0:
        return Outcome(name, broken=f"the {preset} preset could not be configured")
    if run([VENV_BIN / "cmake", "--build", BUILD / preset, "--parallel", str(CPUS)]) != 0:
        return Outcome(name, broken=f"the {preset} preset could not be built")
    return run_ctest(preset, name)


def run_emulated() -> Outcome:
    """Runs the C++ tests for aarch64 and records the outcome in docs/small-computers.md."""
    begin = time.monotonic()
    outcome = run_preset("aarch64")
    if not outcome.broken:
        passed = outcome.ran - outcome.failed
        emulated.record(passed, outcome.failed, outcome.skipped, time.monotonic() - begin)
    return outcome


def run_sanitizers() -> list[Outcome]:
    """Runs the C++ tests under each sanitizer and records the outcome in docs/testing.md."""
    outcomes, runs = [], []
    built = commit()
    for preset in sanitized.WHAT:
        begin = time.monotonic()
        outcome = run_preset(preset)
        seconds = time.monotonic() - begin
        outcomes.append(outcome)
        runs.append(sanitized.Run(preset, outcome.ran - outcome.failed, outcome.failed, outcome.skipped, seconds))
    if not any(outcome.broken for outcome in outcomes):
        sanitized.record(runs, built)
    return outcomes


def run_fuzzers(tier: str) -> Outcome:
    """Runs all fuzz targets: a few minutes in all, or long enough for the table in docs/testing.md."""
    try:
        targets = fuzzing.build()
        if tier == "soak":
            results = fuzzing.long_run(targets)
        else:
            results = fuzzing.run_all(targets, max(5, FUZZ_SECONDS // -(-len(targets) // CPUS)), CPUS)
    except SystemExit as error:
        return Outcome("fuzz", broken=str(error))
    return Outcome("fuzz", ran=len(results), failed=sum(each.found for each in results))


def run_analyzer() -> Outcome:
    status = run([VENV_BIN / "python", ROOT / "scripts" / "check.py", "clang-analyzer"])
    return Outcome("static analysis", ran=1, failed=int(status != 0))


def outcomes_of(tier: str) -> list[Outcome]:
    if tier == "test":
        return [run_ctest("release", "C++"), run_pytest(None, "Python")]
    if tier == "soak":
        return [run_pytest("soak", "Python"), run_fuzzers(tier), run_analyzer()]
    if tier == "aarch64":
        return [run_emulated()]
    return [*run_sanitizers(), run_fuzzers(tier), run_pytest("verify", "Python")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["test", "verify", "soak", "aarch64"])
    begin = time.monotonic()
    outcomes = outcomes_of(parser.parse_args().tier)
    seconds = time.monotonic() - begin
    bad = [outcome.describe() for outcome in outcomes if not outcome.good]
    counts = ", ".join(f"{outcome.ran} {outcome.name}" for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    note = f", {skipped} skipped" if skipped else ""
    verdict = "; ".join(bad) if bad else f"all tests passed ({counts}{note}, {seconds:.0f} s)"
    lines = [f"{outcome.name}: {outcome.summary}" for outcome in outcomes if outcome.summary]
    BUILD.joinpath("test-summary.txt").write_text("\n".join([*lines, f"Atoll: {verdict}", ""]))
    if bad:
        raise fail(f"TESTS FAILED: {verdict}")
    say(verdict)


if __name__ == "__main__":
    main()
