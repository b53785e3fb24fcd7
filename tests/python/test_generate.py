# SPDX-License-Identifier: Apache-2.0
"""`atoll generate`: stand-ins run what Slurm and Kubernetes would run, arguments arrive unchanged, and bad input is
named."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll import vendors
from atoll.generate import docker
from atoll.generate.command import generate
from launching import free_port

ROOT = Path(__file__).resolve().parents[2]
ISLANDS = ["--island", "fast:2x8,device=cuda,container=image:1", "--island", "slow:1x2,device=cpu,container=image:2"]
STRANGE = ["train.py", "--text", "a 'quoted' $HOME $(date) $$ \"word\"", "--island=x"]
TIMEOUT_S = 60

# Starts as many processes as srun starts nodes. A process that fails ends the others, and determines the status.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
options = dict(each.lstrip("-").split("=", 1) for each in sys.argv[1:] if each.startswith("--") and "=" in each[:30])
command = sys.argv[sys.argv.index("bash"):]
ids = range(int(options["nodes"]))
nodes, ended = [], []
def end(*_):
    ended.append(True)
    for node in nodes:
        node.terminate()
signal.signal(signal.SIGTERM, end)  # before there is a node that could be left running
for node in ids:
    nodes.append(subprocess.Popen(command, env=dict(os.environ, SLURM_NODEID=str(node))))
if ended:
    end()
while nodes:
    pid, status = os.wait()
    nodes = [node for node in nodes if node.pid != pid]
    if status:
        end()
        sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""
TELL = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["TOLD"], "a") as told:
    told.write(json.dumps(sys.argv[1:]) + "\\n")
"""
FAIL_ON_THE_FIRST = """#!/bin/bash
case "$*" in *--node-rank=0*) exit 3 ;; esac
exec sleep 600
"""


def generated(*arguments: object) -> str:
    done = CliRunner().invoke(generate, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder at the front of PATH with stand-ins for Slurm's programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\necho 127.0.0.2\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def put_atoll(programs: Path, text: str) -> None:
    (programs / "atoll").write_text(text)
    (programs / "atoll").chmod(0o755)


def run_batch(programs: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = programs.parent / "job.sh"
    path.write_text(script)
    variables = {"SLURM_JOB_NODELIST_HET_GROUP_0": "node[1-2]", "SLURM_JOB_NODELIST": "node[1-2]"}
    environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}", **environment}
    process = subprocess.Popen(
        ["bash", path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def told(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_slurm_asks_for_each_island_what_it_needs() -> None:
    text = generated(
        "slurm", "--name=digits", "--time=2:00:00", "--island=fast:2x8,device=cuda,partition=gpu",
        "--island=near:1x4,device=npu", "--island=slow:3x2,device=cpu,cpus=16", "train.py",
    )  # fmt: skip
    fast, near, slow = ("".join(re.findall("#SBATCH (.*)\n", part)) for part in text.split("#SBATCH hetjob\n"))
    assert fast == (
        "--job-name=digits--partition=gpu--nodes=2--ntasks-per-node=1--cpus-per-task=8--gpus-per-node=8--time=2:00:00"
    )
    assert near == "--nodes=1--ntasks-per-node=1--cpus-per-task=4--gres=npu:4"
    assert slow == "--nodes=3--ntasks-per-node=1--cpus-per-task=16"
    assert "#SBATCH" not in text[text.index("set -euo") :]


@pytest.mark.parametrize("islands", [ISLANDS, ISLANDS[:2]], ids=["two islands", "one island"])
def test_slurm_runs_one_launcher_on_each_node(programs: Path, tmp_path: Path, islands: list[str]) -> None:
    put_atoll(programs, TELL)
    text = generated("slurm", *islands, "--port=30123", *STRANGE)
    done = run_batch(programs, text, TOLD=str(tmp_path / "told"))
    assert done.returncode == 0, done.stdout + done.stderr
    commands = sorted(told(tmp_path / "told"), key=lambda command: command[2])
    hosts = 3 if len(islands) > 2 else 2
    assert [command[:5] for command in commands] == [
        ["run", f"--nnodes={hosts}", f"--node-rank={rank}", "--master-addr=127.0.0.1", "--master-port=30123"]
        for rank in range(hosts)
    ]
    fast, slow = "fast:8,device=cuda,container=image:1", "slow:2,device=cpu,container=image:2"
    assert [command[5:] for command in commands] == [
        ["--island", each, *STRANGE] for each in [fast, fast, slow][:hosts]
    ]


@pytest.mark.verify
def test_slurm_trains_over_two_islands(programs: Path) -> None:
    put_atoll(programs, f'#!/bin/bash\nexec {sys.executable} -m atoll.cli "$@"\n')
    islands = ["--island=fast:1x1,device=cpu", "--island=slow:1x2,device=cpu"]
    done = run_batch(
        programs, generated("slurm", *islands, f"--port={free_port()}", ROOT / "examples/all_reduce.py"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("of 3: the sum is 6") == 3


def test_slurm_ends_when_one_node_fails(programs: Path) -> None:
    put_atoll(programs, FAIL_ON_THE_FIRST)
    assert run_batch(programs, generated("slurm", *ISLANDS, "train.py")).returncode == 3


def as_kubelet(command: list[str], variables: dict[str, str]) -> list[str]:
    """Expands commands like Kubernetes: $(NAME) is a variable if it exists, $$ is $."""

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else variables.get(found[2], found[0])

    return [re.sub(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))", replaced, part) for part in command]


def job_set(kind: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the specification of the resulting job set."""
    manifests = list(yaml.safe_load_all(generated(kind, *ISLANDS, "--name=digits", *STRANGE)))
    if kind == "jobset":
        (manifest,) = manifests
        assert manifest["kind"] == "JobSet"
        return manifest["metadata"]["name"], manifest["spec"]
    runtime, job = manifests
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    return job["metadata"]["name"], runtime["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["jobset", "kubeflow"])
def test_kubernetes_runs_one_launcher_in_each_pod(programs: Path, tmp_path: Path, kind: str) -> None:
    put_atoll(programs, TELL)
    name, specification = job_set(kind)
    pods, commands = [], []
    for replicated in specification["replicatedJobs"]:
        job = replicated["template"]["spec"]
        assert job["parallelism"] == job["completions"]
        (container,) = job["template"]["spec"]["containers"]
        for index in range(job["completions"]):
            pods.append(f"{name}-{replicated['name']}-0-{index}.{name}")
            variables = {"JOB_COMPLETION_INDEX": str(index), "TOLD": str(tmp_path / "told")}
            command = as_kubelet(container["command"], variables)
            environment = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
            subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_S)
            commands.append((container["image"], container["resources"].get("limits"), told(tmp_path / "told")[-1]))
    assert commands == [
        (image, limits, [
            "run", "--nnodes=3", f"--node-rank={rank}", f"--master-addr={pods[0]}", "--master-port=29500",
            "--island", island, *STRANGE,
        ])
        for rank, (image, limits, island) in enumerate([
            ("image:1", {"nvidia.com/gpu": "8"}, "fast:8,device=cuda"),
            ("image:1", {"nvidia.com/gpu": "8"}, "fast:8,device=cuda"),
            ("image:2", None, "slow:2,device=cpu"),
        ])
    ]  # fmt: skip


def dockerfile(vendor: str) -> str:
    base = [] if docker.IMAGES[vendor].base else ["--base=registry/own:3"]
    return generated("docker", "--vendor", vendor, *base)


def test_every_vendor_has_a_dockerfile() -> None:
    assert {row.name for row in vendors.vendors()} - set(docker.IMAGES) == {"gloo"}  # PyTorch includes it


@pytest.mark.parametrize("vendor", docker.IMAGES)
def test_dockerfiles_bring_the_checkout_that_there_is(vendor: str) -> None:
    """All files that Dockerfiles copy exist, the tools that they install are pinned, and their packages are those of
    setup."""
    text = dockerfile(vendor)
    copied = [part for line in re.findall("^COPY (?!--from)(.*) .*$", text, re.MULTILINE) for part in line.split()]
    assert {"src", "pyproject.toml"} < set(copied)
    assert all((ROOT / part).exists() for part in copied)
    rows = [line.split() for line in (ROOT / "scripts/debian-packages.txt").read_text().splitlines() if line]
    needed = {name for name, tier in (row for row in rows if row[0] != "#") if tier == "build"}
    assert set(docker.PACKAGES) == needed - {"libgmock-dev", "libgtest-dev", "redis-server"}, "all but the tests' own"
    tools = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line]
    assert {line.split("==")[0] for line in tools} >= set(docker.BUILD_TOOLS)
    assert "FROM ${BASE}" in text


def test_a_dockerfile_on_an_image_of_ones_own() -> None:
    assert "ARG BASE=registry/own:3\n" in generated("docker", "--vendor=amd", "--base=registry/own:3")


def test_output_goes_into_a_file(tmp_path: Path) -> None:
    assert generated("slurm", *ISLANDS, "--output", tmp_path / "job.sh", "train.py") == ""
    assert (tmp_path / "job.sh").read_text() == generated("slurm", *ISLANDS, "train.py")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["slurm", "--island=fast:2", "train.py"], "write NAME:HOSTSxRANKS, such as fast:2x8"),
        (["slurm", "--island=fast:2x8,colour=red", "train.py"], "unknown option 'colour=red'"),
        (["slurm", "--island=fast:2x8,cpus=many", "train.py"], "write cpus= and a number"),
        (["slurm", "--island=a:1x1", "--island=a:1x1", "train.py"], "island 'a' is given 2 times"),
        (["slurm", "--island=a:1x1", "--name=a b", "train.py"], "--name 'a b': write letters"),
        (["slurm", "--island=a:1x1", "--time=soon", "train.py"], "--time 'soon' is not a Slurm time"),
        (["slurm", "--island=a:1x1", "--output=/no/such/folder/job.sh", "train.py"], "/no/such/folder/job.sh"),
        (["jobset", "--island=a:1x1", "train.py"], "island 'a' has no image: add container=IMAGE"),
        (["jobset", "--island=A:1x1,container=i", "train.py"], "island 'A': Kubernetes allows up to 26 lower-case"),
        (["jobset", "--island=a:1x1,device=mps,container=i", "train.py"], "the Kubernetes resource of mps is unknown"),
        (["jobset", "--island=a:1x1,select=kind,container=i", "train.py"], "write select= and LABEL:VALUE"),
        (["kubeflow", "--island=a:1x1,container=i", "--name=Big", "train.py"], "--name 'Big': Kubernetes allows"),
        (["docker", "--vendor=acme"], "unknown --vendor 'acme': choose from cpu, sim, nvidia, amd, intel, huawei"),
        (["docker", "--vendor=intel"], "--vendor intel: no public image with its PyTorch is known: name one with --"),
        (["docker", "--vendor=cambricon"], "name one with --base, with Debian 12, Ubuntu 24.04 or newer"),
        (["docker", "--vendor=cpu", "--base=a b"], "--base 'a b' is not a valid image name: remove the blanks"),
    ],
)
def test_bad_input_is_named(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(generate, arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("atoll generate: ")
    assert text in done.stderr
