# SPDX-License-Identifier: Apache-2.0
"""Checks groups of devices and CPUs: every operation, reduction and type against a reference in 64 bits, side streams,
tensors that are freed early, and the same bits on all ranks. The functions are those of the tests."""

from typing import Any

import trying

# Jobs of a mixed group; each checks its own results on every rank.
JOBS = {
    "test_mixed_groups": ["reduce_everything", "move_everything", "send_round", "exchange_much", "mix_layouts",
                          "compute_between"],
    "test_inner_libraries": ["reduce_all_types", "reduce_in_other_ways", "sizes_at_the_borders", "uneven_sizes",
                             "interleave", "give_strided", "coalesce", "release_tensors", "give_wrong_arguments"],
}  # fmt: skip
QUICK = {"test_mixed_groups": ["reduce_everything", "mix_layouts", "compute_between"]}
QUICK_PROPERTIES = 4
TURNS = 3


def run_jobs(trial: trying.Trial, ranks: Any) -> int:
    import importlib

    done = 0
    for module, names in (QUICK if trial.quick else JOBS).items():
        found = importlib.import_module(module)
        for name in names:
            job = getattr(found, name)
            before = trial.failures
            trial.check(name.replace("_", " "), lambda job=job: ranks.run(job))
            done += trial.failures == before
    return done


def run_contract(trial: trying.Trial, ranks: Any) -> tuple[int, int]:
    """Returns how many cases of the contract were tried, and how many hold."""
    from contract_backends import ISLANDS_OF_DEVICES, NOT_ON_DEVICES
    from test_contract import PROPERTIES, lacking, run_property

    asked = good = 0
    wanted = [each for each in PROPERTIES if each[1] not in NOT_ON_DEVICES]
    for module, name in wanted[:QUICK_PROPERTIES] if trial.quick else wanted:
        lacks = ISLANDS_OF_DEVICES.get(name, {})
        untried = [pattern for pattern, lack in lacks.items() if lack.said is None]
        outcomes = trial.check(
            f"contract: {name.replace('_', ' ')}",
            lambda m=module, n=name, u=untried: ranks.run(run_property, ranks.size, m, n, u),
        )
        for case in outcomes[0] if outcomes else ():
            said = [each[case] for each in outcomes]
            is_good = not any(said) or lacking(case, lacks) is not None
            asked, good = asked + 1, good + is_good
            if not is_good:
                trial.failures += 1
                rank = next(rank for rank, what in enumerate(said) if what)
                text = said[rank][: trying.SHOWN]
                trial.add(f"FAILED {name} {case}, rank {rank}: {text}", what=f"{name} {case}", good=False)
    return asked, good


def compare_bits(trial: trying.Trial, ranks: Any) -> None:
    from test_inner_libraries import all_hold_the_same_bits

    def compare() -> None:
        of_runs = [ranks.run(all_hold_the_same_bits) for _ in range(TURNS)]
        assert all(each == of_runs[0][0] for of_ranks in of_runs for each in of_ranks), "ranks or runs differ in bits"

    trial.check("the same bits on all ranks and in every run", compare)


def main() -> None:
    trial, given = trying.begin(__doc__, "layout")
    ranks = trying.ranks_of(given.layout, trial.device)
    try:
        done = run_jobs(trial, ranks)
        asked, good = run_contract(trial, ranks)
        compare_bits(trial, ranks)
    finally:
        ranks.stop()
    who = " + ".join(trying.kinds_of(given.layout, trial.device))
    trial.add(f"{who}: {done} jobs and {good} of {asked} cases of the contract as they must be", jobs=done, cases=asked,
              good_cases=good)  # fmt: skip
    trial.end()


if __name__ == "__main__":
    main()
