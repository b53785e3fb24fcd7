# SPDX-License-Identifier: Apache-2.0
"""Tries Atoll with this machine's GPU beside its CPU: builds it for the Python that runs this, and measures.

Each step is a program of its own with its own time limit: a step that fails or hangs does not stop the others. Results
are in the folder --out as soon as they are known: results.jsonl, log.txt and summary.md. The exit status is 0 if every
step that ran has passed, and 1 otherwise; steps that did not fit the budget are named and do not count as failures."""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpu_build
import gpu_page
from common import BUILD, CPUS, ROOT, commit, fail, say
from gpu_running import Record, run_limited
from gpu_steps import BUILD_SECONDS, Step, chosen, fitting

FACTS = """import json, sys, torch
kind = sys.argv[1]
if kind == "sim":
    import atoll.sim
module = getattr(torch, kind)
name = module.get_device_name(0) if hasattr(module, "get_device_name") else "simulated device"
from atoll import vendors
vendor = next((row.name for row in vendors.vendors() if row.device == kind and row.present()), "")
runtime = torch.version.cuda or torch.version.hip or ""
print(json.dumps({"name": name, "vendor": vendor, "torch": torch.__version__, "runtime": runtime}))"""
RESERVE_SECONDS = 5.0  # of the budget, reserved for the tables at the end


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=BUILD / "gpu-results", metavar="DIR", help="default: %(default)s")
    add("--device", default="", help="cuda, xpu, npu, ..., or sim, the simulated one; default: what torch finds")
    add("--budget", type=float, metavar="SECONDS", help="for everything, including the build")
    add("--only", action="append", default=[], metavar="STEP", help="may be given several times")
    add("--skip", action="append", default=[], metavar="STEP", help="may be given several times")
    add("--quick", action="store_true", help="tiny sizes: shows that everything runs, measures nothing")
    add("--slower", type=float, default=1.0, metavar="TIMES", help="than the machine for which times are stated")
    add("--installed", action="store_true", help="use the Atoll that this Python has; build nothing")
    add("--plan", action="store_true", help="print the steps and their expected times, and exit")
    add("--commit", default="", help="of the sources, for copies without git")
    add("--page", type=Path, metavar="DIR", help="write the results in DIR into docs/hardware.md, and exit")
    add("--rehearsal", type=Path, metavar="DIR", help="write those in DIR into docs/results/gpu_rehearsal.md, and exit")
    return parser.parse_args()


def wanted_steps(given: argparse.Namespace) -> list[Step]:
    try:
        return chosen(given.only, given.skip)
    except ValueError as error:
        raise fail(str(error)) from None


def print_plan(given: argparse.Namespace) -> None:
    """Prints what would run, in order of importance."""
    steps, build = wanted_steps(given), 0.0 if given.installed else BUILD_SECONDS * given.slower
    left = None if given.budget is None else given.budget - build - RESERVE_SECONDS
    fits = fitting(steps, left, given.slower)
    print(f"{'step':<16} {'seconds':>7} {'limit':>6}  what")
    print(f"{'build':<16} {build:>7.0f} {'':>6}  Atoll for this Python and its torch, on 16 cores")
    for step in steps:
        shown = f"{step.expected * given.slower:>7.0f} {step.limit(given.slower):>6.0f}"
        note = "" if step in fits else " [left out: does not fit the budget]"
        print(f"{step.name:<16} {shown}  {step.what}{note}")
    total = build + sum(step.expected for step in fits) * given.slower
    print(f"{'together':<16} {total:>7.0f} {'':>6}  {len(fits)} of {len(steps)} steps")


@dataclass
class Trial:
    """Runs the steps one after the other and records their outcomes."""

    given: argparse.Namespace
    record: Record
    ready: gpu_build.Ready
    device: str
    deadline: float | None

    def left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic() - RESERVE_SECONDS

    def run(self, steps: list[Step]) -> bool:
        """Whether all steps that ran have passed."""
        states = [self.run_step(step) for step in steps]
        return all(state in ("passed", "left out") for state in states)

    def run_step(self, step: Step) -> str:
        left, needed = self.left(), step.expected * self.given.slower
        if left is not None and needed > left:
            why = f"needs about {needed:.0f} s, and {max(0.0, left):.0f} s of the budget are left"
            self.record.add(kind="step", step=step.name, state="left out", seconds=0.0, said=why)
            say(f"{step.name}: left out: {why}")
            return "left out"
        limit = step.limit(self.given.slower)
        limit = limit if left is None else min(limit, max(1.0, left))
        say(f"{step.name}: {step.what} (about {needed:.0f} s)")
        self.record.note(f"\n===== {step.name}: {step.what}")
        command: list[str | Path] = [sys.executable, "-u", step.path, *step.arguments, "--device", self.device]
        command += ["--step", step.name, "--results", self.record.results, *(["--quick"] if self.given.quick else [])]
        outcome = run_limited(command, self.ready.environment(), limit, self.record.log)
        said = {"passed": "", "timed out": f"ended after {limit:.0f} s"}.get(outcome.state, f"status {outcome.status}")
        row: dict[str, Any] = {"state": outcome.state, "seconds": round(outcome.seconds, 1), "said": said}
        if outcome.state != "passed":
            row["tail"] = outcome.tail
        self.record.add(kind="step", step=step.name, **row)
        say(f"{step.name}: {outcome.state} after {outcome.seconds:.0f} s {said}".rstrip())
        if outcome.state != "passed":
            print("\n".join(f"    {line}" for line in outcome.tail.splitlines()), flush=True)
        return outcome.state


def describe(given: argparse.Namespace, ready: gpu_build.Ready, device: str) -> dict[str, Any]:
    """Returns the first row of the record: the machine, the versions and the options."""
    done = subprocess.run(
        [sys.executable, "-c", FACTS, device], env=ready.environment(), cwd="/", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise fail(f"Atoll cannot be used with this torch:\n{done.stderr.strip()}")
    facts = json.loads(done.stdout.splitlines()[-1])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "kind": "machine", "device": device, **facts, "python": sys.version.split()[0], "cores": CPUS,
        "memory_gib": round(memory), "quick": given.quick, "commit": given.commit or commit(),
        "day": datetime.now(UTC).strftime("%Y-%m-%d"), "build_s": round(ready.seconds, 1),
        "build_cpu_s": round(ready.cpu_seconds, 1),
    }  # fmt: skip


def show(text: str) -> None:
    """Prints the summary, with rich if it is installed."""
    try:
        from rich.console import Console
        from rich.markdown import Markdown
    except ImportError:
        print(text)
        return
    Console(width=None if sys.stdout.isatty() else 160).print(Markdown(text))


def trial(given: argparse.Namespace) -> int:
    begin = time.monotonic()
    steps = wanted_steps(given)
    device = gpu_build.find_device(given.device)
    record = Record(given.out.resolve())
    ready = gpu_build.installed() if given.installed else gpu_build.build(record.log)
    if not given.installed:
        say(f"built in {ready.seconds:.0f} s ({ready.cpu_seconds:.0f} s of processor time)")
    record.add(**describe(given, ready, device))
    deadline = None if given.budget is None else begin + given.budget
    is_good = Trial(given, record, ready, device, deadline).run(steps)
    text = gpu_page.summary(record.read())
    record.summary.write_text(text)
    show(text)
    say(f"{'every step that ran has passed' if is_good else 'NOT ALL STEPS PASSED'}; results in {record.folder}")
    return 0 if is_good else 1


def main() -> int:
    given = options()
    if given.page:
        gpu_page.fill(given.page)
    elif given.rehearsal:
        gpu_page.write_rehearsal(given.rehearsal)
    elif given.plan:
        print_plan(given)
    else:
        return trial(given)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
