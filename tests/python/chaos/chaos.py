# SPDX-License-Identifier: Apache-2.0
"""Runs random trials with random faults, each of which can be repeated by its seed; the last line states the result."""

import argparse
import os
import random
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first trial; the next have the next numbers (default: random)")
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--fault", help="only trials with this one")
    parser.add_argument("--page", type=Path, help="folder for the page that reports them")
    arguments = parser.parse_args()
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent / "faults")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # as conftest.py does
    import chaos_report
    from chaos_trial import FAULTS

    seed = random.SystemRandom().getrandbits(31) if arguments.seed is None else arguments.seed
    wanted = FAULTS if arguments.fault is None else (arguments.fault,)
    seeds = [
        each for each in range(seed, seed + arguments.trials * len(FAULTS)) if FAULTS[each % len(FAULTS)] in wanted
    ]
    outcomes = chaos_report.run_all(
        seeds[: arguments.trials], lambda text: print(text, flush=True), chaos_report.SOAK / "chaos"
    )
    facts = chaos_report.document(outcomes, seed)
    path = chaos_report.write(facts, arguments.page)
    print(chaos_report.table(facts), end="")
    found = chaos_report.failures(facts)
    print(f"chaos: {'FAILED: ' + '; '.join(found) if found else 'all is as it must be'} (seed {seed}, {path})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
