# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the fuzz targets (tests/fuzz), and keeps what a long run did in docs/testing.md."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common import BUILD, CPUS, ROOT, VENV_BIN, fail, run, say

PAGE = ROOT / "docs/testing.md"
BEGIN, END = "<!-- fuzzing: written by make soak -->", "<!-- fuzzing: end -->"
NOT_YET = "Not run yet: `make soak` writes the table here."


@dataclass(frozen=True)
class Fuzzed:
    """What one target did. `edges` are those of the control flow that an input reached, of `all_edges` there are."""

    name: str
    found: bool
    seconds: int = 0
    executions: int = 0
    edges: int = 0
    all_edges: int = 0
    features: int = 0


def read_log(name: str, text: str, failed: bool) -> Fuzzed:
    """Of libFuzzer's output with -print_final_stats=1."""

    def last(pattern: str) -> int:
        numbers = re.findall(pattern, text)
        return int(numbers[-1]) if numbers else 0

    executions = last(r"stat::number_of_executed_units:\s*(\d+)") or last(r"Done (\d+) runs")
    return Fuzzed(
        name,
        failed,
        last(r"Done \d+ runs in (\d+) second"),
        executions,
        last(r"\bcov: (\d+)"),
        last(r"Loaded \d+ modules\s+\((\d+) inline"),
        last(r"\bft: (\d+)"),
    )


def fuzz(target: Path, seconds: int) -> Fuzzed:
    """From its seeds and what earlier runs have found to be of use; what it finds stays in build/fuzz."""
    name = target.name.removesuffix("_fuzz")
    corpus = BUILD / "fuzz/corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [target, f"-max_total_time={seconds}", "-timeout=10", "-print_final_stats=1"]
    seeds = ROOT / "tests/fuzz/seeds" / name
    command += [f"-artifact_prefix={BUILD}/fuzz/{target.name}-", "-verbosity=1", corpus, seeds]
    log = BUILD / "fuzz" / f"{target.name}.log"
    with log.open("w") as output:
        status = run(command, output)
    text = log.read_text(errors="replace")
    result = read_log(name, text, status != 0)
    say(f"{target.name}: {result.executions} runs, {result.edges} edges in {result.seconds} s")
    if status != 0:
        say("\n".join([f"{target.name} ended with status {status}:", *text.splitlines()[-60:]]))
    return result


def build() -> list[Path]:
    """The targets' programs. Raises SystemExit where there are none."""
    say("building the fuzz targets")
    if run([VENV_BIN / "cmake", "--preset", "fuzz", "--log-level=NOTICE"]) != 0:
        raise fail("the fuzz preset does not configure")
    if run([VENV_BIN / "cmake", "--build", "--preset", "fuzz", "--parallel", str(CPUS)]) != 0:
        raise fail("the fuzz targets do not build")
    targets = sorted((BUILD / "fuzz/tests/fuzz").glob("*_fuzz"))
    if not targets:
        raise fail("there is no fuzz target")
    return targets


def run_all(seconds_each: int, at_once: int) -> list[Fuzzed]:
    targets = build()
    say(f"fuzzing {len(targets)} targets for {seconds_each} s each, {at_once} at once")
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda target: fuzz(target, seconds_each), targets))


def table(results: Sequence[Fuzzed]) -> str:
    rows = [
        f"| `{each.name}` | {each.seconds} | {each.executions:,} | {each.edges:,} of {each.all_edges:,} "
        f"| {each.features:,} | {'**yes**' if each.found else 'no'} |"
        for each in sorted(results, key=lambda each: each.name)
    ]
    head = ["| target | seconds | executions | edges reached | features | findings |", "|---|---|---|---|---|---|"]
    total = f"{len(results)} targets, {sum(each.executions for each in results):,} executions."
    return "\n".join([total, "", *head, *rows])


def page_with(page: str, content: str) -> str:
    """The page with `content` between its marks. Raises ValueError where it has none."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"docs/testing.md lacks the marks {BEGIN} and {END}")
    return f"{before}{mark}\n{content}\n{end}{after}"


def record(results: Sequence[Fuzzed]) -> None:
    PAGE.write_text(page_with(PAGE.read_text(), table(results)))
    say(f"docs/testing.md: what {len(results)} fuzz targets did")
