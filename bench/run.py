#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the documentation claims, and writes docs/results: all scenarios, or those that are named.

Exits with 1 if one failed, with 4 if other processes keep the machine busy."""

import argparse
import json
import sys
from pathlib import Path

import own_python  # noqa: F401 - goes on in .venv
import report
from result_files import store
from results import RESULTS, BusyError, Settings, run_scenario, say
from scenarios import SCENARIOS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}; default all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--force-busy", action="store_true", help="measure on a busy machine too, and mark the results")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for results (docs/results)")
    parser.add_argument("--backends", default="atoll,gloo", help="what is measured, and what it is compared with")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10's binary files, for kaitian; default digits")
    parser.add_argument("--fraction", type=float, help="of the papers' epochs and updates; default: the scenario's own")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="all samples of NAME: write its results from them")
    parser.add_argument("--full", action="store_true", help="whole recorded links, for split_bytes; takes hours")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]}: choose from {', '.join(SCENARIOS)}")
    if arguments.samples and len(arguments.names) != 1:
        parser.error("--samples holds those of one scenario: name it")
    if arguments.quick and arguments.output == RESULTS:
        parser.error("--quick measures nothing that belongs in the documentation: name another folder with --output")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    settings = Settings(
        arguments.quick, arguments.force_busy, arguments.output, arguments.backends.split(","), arguments.data,
        arguments.fraction, arguments.full,
    )  # fmt: skip
    if arguments.samples:
        (name,) = arguments.names
        store(name, SCENARIOS[name], json.loads(arguments.samples.read_text()), arguments.output)
        report.generate(arguments.output)
        return 0
    failed = []
    status = 0
    for name in arguments.names or SCENARIOS:
        try:
            path = run_scenario(name, SCENARIOS[name], settings)
            say(f"{name}: written to {path}")
        except BusyError as error:
            say(f"{name}: not measured: {error}")
            status = 4
        except (RuntimeError, OSError) as error:
            say(f"{name}: FAILED: {error}")
            failed.append(name)
    report.generate(arguments.output)
    if failed:
        say(f"failed: {', '.join(failed)}")
        return 1
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; nothing is left behind")
        sys.exit(130)
