# SPDX-License-Identifier: Apache-2.0
"""The additional time of a call through Atoll over the vendor's library alone: one rank on the device, whose group
Atoll leaves to the library. Calls alternate in one process; each ends when the device is done."""

import trying

CASES = (("all_reduce", 4), ("all_reduce", 1 << 20), ("all_reduce", 64 << 20), ("broadcast", 1 << 12),
         ("all_gather", 1 << 16), ("reduce_scatter", 1 << 16))  # fmt: skip
TURNS, SECONDS = 5, 0.3  # of each case


def main() -> None:
    trial, _ = trying.begin(__doc__)
    from atoll import vendors
    from atoll.bench.operations import Problem
    from atoll.bench.sizes import format_size
    from contenders import Place, TorchRanks
    from pairs import compare_pairs, over_launches

    vendor = vendors.find(trial.device)
    if vendor is None:
        raise SystemExit(f"no vendor's library works on {trial.device}")
    library = ("ATOLL_INNER", f"{trial.device}:{vendor.library}")  # a group of one uses it only if it is named
    place = Place(environment=(*trying.environments_of([trial.device])[0].items(), ("ATOLL_ISLAND", "A"), library))
    turns, seconds = (2, 0.02) if trial.quick else (TURNS, SECONDS)
    with TorchRanks([place], ["atoll", "inner"]) as ranks:
        for operation, size in CASES[:2] if trial.quick else CASES:
            problem = Problem(operation, size)
            rows = trial.check(
                f"{operation} {size}",
                lambda p=problem: [compare_pairs(ranks, ("atoll", "inner"), p, seconds) for _ in range(turns)],
            )
            if rows:
                row = over_launches(rows)
                added, alone = row["added_us"], row["us"]["inner"]
                trial.add(
                    f"{operation} of {format_size(size)}: {added['median']:.1f} us more ({added['low']:.1f} to "
                    f"{added['high']:.1f}) than {alone:.1f} us",
                    operation=operation, **row,
                )  # fmt: skip
    trial.end()


if __name__ == "__main__":
    main()
