# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the fuzz targets (tests/fuzz), and records the results of long runs in docs/testing.md.

As a program: runs each named target for ten minutes, or without names each target that had no long run since it was
built, so that a long run can be made in parts."""

import argparse
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common import BUILD, CPUS, ROOT, VENV_BIN, commit, fail, run, say, with_part

PAGE = ROOT / "docs/testing.md"
BEGIN, END = "<!-- fuzzing: written by make soak -->", "<!-- fuzzing: end -->"
LONG_SECONDS = 600  # each target
LONG_AT_ONCE = 2
ENDED_WELL = "\nDone "  # of libFuzzer's output
NOT_YET = "Not run yet: `make soak` writes the table here."
NOT_NOTED = "-"
HEAD = "| target | seconds | executions | edges reached | features | findings | commit | day |"
_COUNT = r"([\d,]+)"
_ROW = re.compile(
    rf"^\| `(\w+)` \| {_COUNT} \| {_COUNT} \| {_COUNT} of {_COUNT} \| {_COUNT} \| (no|\*\*yes\*\*) \|"
    r"(?: (\S+) \| (\S+) \|)?$",
    re.MULTILINE,
)
_page_lock = threading.Lock()


@dataclass(frozen=True)
class Fuzzed:
    """The result of one target. `edges` is the number of edges of the control flow that inputs reached, out of
    `all_edges`; `commit` and `day`: what was run, and when."""

    name: str
    found: bool
    seconds: int = 0
    executions: int = 0
    edges: int = 0
    all_edges: int = 0
    features: int = 0
    commit: str = NOT_NOTED
    day: str = NOT_NOTED


def read_log(name: str, text: str, failed: bool) -> Fuzzed:
    """Reads a log: the line of was_run(), then libFuzzer's output with -print_final_stats=1."""

    def last(pattern: str) -> int:
        numbers = re.findall(pattern, text)
        return int(numbers[-1]) if numbers else 0

    noted = re.match(r"commit (\S+), day (\S+)\n", text)
    executions = last(r"stat::number_of_executed_units:\s*(\d+)") or last(r"Done (\d+) runs")
    return Fuzzed(
        name,
        failed,
        last(r"Done \d+ runs in (\d+) second"),
        executions,
        last(r"\bcov: (\d+)"),
        last(r"Loaded \d+ modules\s+\((\d+) inline"),
        last(r"\bft: (\d+)"),
        *(noted.groups() if noted else ()),
    )


def was_run() -> str:
    """Returns the first line of a log."""
    return f"commit {commit()}, day {datetime.now(UTC):%Y-%m-%d}\n"


def log_of(target: Path, seconds: int) -> Path:
    return BUILD / f"fuzz/logs/{seconds}s/{target.name}.log"


def fuzz(target: Path, seconds: int) -> Fuzzed:
    """Fuzzes from the target's seeds and the inputs that earlier runs kept; what it finds stays in build/fuzz."""
    name = target.name.removesuffix("_fuzz")
    corpus = BUILD / "fuzz/corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [target, f"-max_total_time={seconds}", "-timeout=10", "-print_final_stats=1"]
    seeds = ROOT / "tests/fuzz/seeds" / name
    command += [f"-artifact_prefix={BUILD}/fuzz/{target.name}-", "-verbosity=1", corpus, seeds]
    log = log_of(target, seconds)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        output.write(was_run())
        output.flush()
        status = run(command, output)
    text = log.read_text(errors="replace")
    result = read_log(name, text, status != 0)
    say(f"{target.name}: {result.executions} runs, {result.edges} edges in {result.seconds} s")
    if status != 0:
        say("\n".join([f"{target.name} ended with status {status}:", *text.splitlines()[-60:]]))
    return result


def build(names: Sequence[str] = ()) -> list[Path]:
    """Builds the targets' programs and returns them, all of them unless some are named. Raises SystemExit if there are
    none."""
    say("building the fuzz targets")
    if run([VENV_BIN / "cmake", "--preset", "fuzz", "--log-level=NOTICE"]) != 0:
        raise fail("the fuzz preset could not be configured")
    if run([VENV_BIN / "cmake", "--build", "--preset", "fuzz", "--parallel", str(CPUS), *_chosen(names)]) != 0:
        raise fail("the fuzz targets could not be built")
    folder = BUILD / "fuzz/tests/fuzz"
    targets = [folder / f"{name}_fuzz" for name in names] or sorted(folder.glob("*_fuzz"))
    if not targets:
        raise fail("there is no fuzz target")
    return targets


def _chosen(names: Sequence[str]) -> list[str]:
    return ["--target", *(f"{name}_fuzz" for name in names)] if names else []


def run_all(
    targets: Sequence[Path], seconds_each: int, at_once: int, after: Callable[[], None] = lambda: None
) -> list[Fuzzed]:
    """Fuzzes the targets, and calls `after` whenever one is done."""
    say(f"fuzzing {len(targets)} targets for {seconds_each} s each, {at_once} at once")

    def one(target: Path) -> Fuzzed:
        result = fuzz(target, seconds_each)
        after()
        return result

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, targets))


def long_run(targets: Sequence[Path]) -> list[Fuzzed]:
    return run_all(targets, LONG_SECONDS, LONG_AT_ONCE, record)


def left(targets: Sequence[Path]) -> list[Path]:
    """Returns the targets whose last long run is older than they are, did not finish, or found something."""

    def is_done(target: Path) -> bool:
        log = log_of(target, LONG_SECONDS)
        return (
            log.exists()
            and log.stat().st_mtime > target.stat().st_mtime
            and ENDED_WELL in log.read_text(errors="replace")
        )

    return [target for target in targets if not is_done(target)]


def table(results: Sequence[Fuzzed]) -> str:
    rows = [
        f"| `{each.name}` | {each.seconds} | {each.executions:,} | {each.edges:,} of {each.all_edges:,} "
        f"| {each.features:,} | {'**yes**' if each.found else 'no'} | {each.commit} | {each.day} |"
        for each in sorted(results, key=lambda each: each.name)
    ]
    total = f"{len(results)} targets, {sum(each.executions for each in results):,} executions."
    return "\n".join([total, "", HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows])


def rows_of(page: str) -> list[Fuzzed]:
    """Reads the rows of the page's table. Old rows have no commit and no day."""

    def number(text: str) -> int:
        return int(text.replace(",", ""))

    content = page.partition(BEGIN)[2].partition(END)[0]
    rows = []
    for name, seconds, executions, edges, all_edges, features, found, commit_name, day in _ROW.findall(content):
        counts = number(seconds), number(executions), number(edges), number(all_edges), number(features)
        rows.append(Fuzzed(name, found != "no", *counts, commit_name or NOT_NOTED, day or NOT_NOTED))
    return rows


def page_with(page: str, content: str) -> str:
    """Returns the page with `content` between its marks. Raises ValueError if it lacks them."""
    return with_part(page, BEGIN, END, content)


def record() -> None:
    """Writes the table of all long runs that have finished; targets without a log here keep their row of the page."""
    logs = sorted(BUILD.glob(f"fuzz/logs/{LONG_SECONDS}s/*_fuzz.log"))
    runs = [(log.stem.removesuffix("_fuzz"), log.read_text(errors="replace")) for log in logs]
    results = [read_log(name, text, ENDED_WELL not in text) for name, text in runs if "\nstat::" in text]
    if not results:
        return
    logged = {each.name for each in results}
    with _page_lock:
        page = PAGE.read_text()
        kept = [each for each in rows_of(page) if each.name not in logged and is_target(each.name)]
        PAGE.write_text(page_with(page, table([*kept, *results])))


def is_target(name: str) -> bool:
    return (ROOT / f"tests/fuzz/{name}_fuzz.cpp").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="their names in tests/fuzz, without _fuzz.cpp")
    names = parser.parse_args().targets
    unknown = sorted(name for name in names if not is_target(name))
    if unknown:
        raise fail(f"there is no fuzz target {', '.join(unknown)} in tests/fuzz")
    built = build(names)
    wanted = built if names else left(built)
    found = [each.name for each in long_run(wanted) if each.found]
    if found:
        raise fail(f"FUZZING FOUND: {', '.join(found)}")
    say(f"{len(wanted)} targets were fuzzed; docs/testing.md has the table")


if __name__ == "__main__":
    main()
