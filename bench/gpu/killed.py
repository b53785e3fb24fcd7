# SPDX-License-Identifier: Apache-2.0
"""Kills a rank, on the device or on a CPU, and measures how soon each other rank has its error."""

import tempfile
from pathlib import Path

import trying

LAYOUT = "D C C"
PROMISED_S = 2.0
CASES = {"the device's rank": 0, "a CPU's rank": 2}
VALUES = 1 << 20


def kill(trial: trying.Trial, victim: int) -> float:
    """Returns the seconds until the last survivor has its error; raises AssertionError if one is late or hangs."""
    from fault_jobs import Job, reduce_forever

    kinds = trying.kinds_of(LAYOUT, trial.device)
    own = dict(enumerate(trying.environments_of(kinds)))
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), reduce_forever, "ABB", (VALUES,), own=own) as job:
        job.wait_for("running")
        at = job.signal(victim)
        survivors = [rank for rank in range(job.size) if rank != victim]
        failures = job.failures(survivors, at, PROMISED_S)
    return max(failure.at - at for failure in failures.values())


def main() -> None:
    trial, _ = trying.begin(__doc__)
    for name, victim in CASES.items():
        seconds = trial.check(f"killed: {name}", lambda victim=victim: kill(trial, victim))
        if seconds is not None:
            trial.add(
                f"{name} killed in all_reduce: the others know after {seconds:.2f} s", victim=name, noticed_s=seconds
            )
    trial.end()


if __name__ == "__main__":
    main()
