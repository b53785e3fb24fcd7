# SPDX-License-Identifier: Apache-2.0
"""A batch script of a heterogeneous Slurm job: one component for each island, one `atoll run` on each host."""

import shlex

from atoll.generate.islands import Hosts, Job

_HEAD = """\
#!/bin/bash
# Written by `atoll generate slurm`: sbatch FILE. Checked with shellcheck, run with a stand-in for srun, not by Slurm.
# Atoll and the script must be in a shared folder, under the same path on all hosts."""
_END = """\
# The first step that ends with an error ends the others.
status=0
for _ in "${steps[@]}"; do
    wait -n || { status=$?; kill "${steps[@]}" 2> /dev/null || true; break; }
done
wait
exit "$status\""""


def slurm(job: Job, time: str) -> str:
    lines = [_HEAD, f"#SBATCH --job-name={job.name}"]
    for number, each in enumerate(job.islands):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {option}" for option in _options(each, time if not number else "")]
    several = len(job.islands) > 1
    nodes = "SLURM_JOB_NODELIST_HET_GROUP_0" if several else "SLURM_JOB_NODELIST"
    lines += [
        "set -euo pipefail",
        f'mapfile -t nodes < <(scontrol show hostnames "${nodes}")',
        "export first=${nodes[0]}",
        "steps=()",
    ]
    before = 0
    for number, each in enumerate(job.islands):
        group = f"--het-group={number} " if several else ""
        own = f"$(({before} + SLURM_NODEID))" if before else '"$SLURM_NODEID"'
        command = job.command(each, own, '"$first"', container=True)
        lines += [
            f"# {each.island.name}: nodes {before} to {before + each.hosts - 1}",
            f"# shellcheck disable=SC2016 # the shell on each host replaces the variables\n"
            f"srun {group}{' '.join(_share(each))} --kill-on-bad-exit=1 bash -c \\\n"
            f"    {shlex.quote('exec ' + command)} &",
            'steps+=("$!")',
        ]
        before += each.hosts
    return "\n".join([*lines, _END, ""])


def _options(each: Hosts, time: str) -> list[str]:
    options = [f"--partition={each.partition}"] if each.partition else []
    options += _share(each)
    return [*options, f"--time={time}"] if time else options


def _share(each: Hosts) -> list[str]:
    """Returns the options that srun needs again, because it does not inherit them from the job."""
    options = [f"--nodes={each.hosts}", "--ntasks-per-node=1", f"--cpus-per-task={each.processors}"]
    if each.accelerator in ("cuda", "rocm", "xpu"):
        options.append(f"--gpus-per-node={each.ranks}")
    elif each.accelerator:
        options.append(f"--gres={each.accelerator}:{each.ranks}")
    return options
