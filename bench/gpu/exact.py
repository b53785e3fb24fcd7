# SPDX-License-Identifier: Apache-2.0
"""Checks that training over a device and CPUs gives the model of one process with the same global batch, in float64:
DDP and FSDP2 with even and uneven shares. The functions are those of the tests."""

import trying

BODIES = (
    ("test_loader", "test_trains_as_one_process"),
    ("test_ddp", "test_plain"),
    ("test_ddp", "test_many_buckets"),
    ("test_fully_shard", "test_float64"),
    ("test_weights", "test_ddp"),
    ("test_weights", "test_fsdp"),
    ("test_sharding", "test_devices_are_measured_with_a_sharded_model"),
)
LAYOUTS = ("D C", "D C C")


def main() -> None:
    trial, _ = trying.begin(__doc__)
    from client_ranks import run_body

    for layout in LAYOUTS[:1] if trial.quick else LAYOUTS:
        ranks = trying.ranks_of(layout, trial.device)
        before = trial.failures
        try:
            for module, name in BODIES[:2] if trial.quick else BODIES:
                trial.check(
                    f"{module} {name.removeprefix('test_').replace('_', ' ')}, {layout}",
                    lambda m=module, n=name, r=ranks: r.run(run_body, r.size, m, n),
                )
        finally:
            ranks.stop()
        if trial.failures == before:
            who = " + ".join(trying.kinds_of(layout, trial.device))
            trial.add(f"{who}: as one process, within 1e-12 of the largest parameter", layout=layout)
    trial.end()


if __name__ == "__main__":
    main()
