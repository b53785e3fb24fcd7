# SPDX-License-Identifier: Apache-2.0
"""Islands in containers: finds the runtime, builds the command, and removes leftover containers."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from atoll.launch import LaunchError

_RUNTIMES = ("podman", "docker")
_ANSWER_TIMEOUT_S = 20
_JOB_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ATOLL_STORE", "ATOLL_SUPERVISOR", "ATOLL_MEMBER",
)  # fmt: skip
_FILE_VARIABLES = (
    "ATOLL_KEY_FILE", "ATOLL_REDIS_PASSWORD_FILE", "ATOLL_REDIS_CA", "ATOLL_REDIS_CERT", "ATOLL_REDIS_KEY",
)  # fmt: skip
_DEVICE_FLAGS = {
    ("podman", "cuda"): ["--device", "nvidia.com/gpu=all"],
    ("docker", "cuda"): ["--gpus", "all"],
    ("podman", "rocm"): ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "keep-groups"],
    ("docker", "rocm"): ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"],
    ("podman", "xpu"): ["--device", "/dev/dri", "--group-add", "keep-groups"],
    ("docker", "xpu"): ["--device", "/dev/dri", "--group-add", "video"],
}


def find_runtime(island: str) -> str:
    """Returns the path of podman or, if that does not work, docker. Waits at most 20 s for each. Errors name
    `island`."""
    problems = []
    for name in _RUNTIMES:
        path = shutil.which(name)
        if path is None:
            problems.append(f"{name} is not installed")
            continue
        try:
            done = _run(path, "version")
        except (OSError, subprocess.TimeoutExpired) as error:
            problems.append(f"{name} does not run ({error})")
            continue
        if done.returncode == 0:
            return path
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        problems.append(f"{name} does not run ({last})")
    raise LaunchError(
        f"island {island!r} needs a container, but {' and '.join(problems)}: install one of them, start its "
        "service, or remove container="
    )


def container_command(
    runtime: str, image: str, label: str, device: str | None, environment: dict[str, str], folders: Sequence[Path]
) -> list[str]:
    """Returns the command prefix that runs a command in a container of `image`: with the host's network and
    inter-process communication, in the same working directory, with the job's environment and the devices of type
    `device`. `label` marks the container for remove_containers()."""
    kind = (device or "").partition(":")[0]
    inherited = list(
        dict.fromkeys([*_JOB_VARIABLES, *sorted(name for name in os.environ if name.startswith("ATOLL_"))])
    )
    here = Path.cwd()
    command = [
        runtime, "run", "--rm", "--init", "--label", f"atoll.launcher={label}", "--network", "host", "--ipc", "host",
        "--security-opt", "label=disable", "--ulimit", "memlock=-1", "--workdir", str(here),
    ]  # fmt: skip
    for folder in dict.fromkeys([here, *folders]):
        command += ["--volume", f"{folder}:{folder}"]
    for variable in _FILE_VARIABLES:
        if file := environment.get(variable, os.environ.get(variable)):
            path = Path(file).absolute()
            command += ["--volume", f"{path}:{path}:ro"]
    command += _DEVICE_FLAGS.get((Path(runtime).name, kind), [])
    for name in inherited:
        if name not in environment:
            command += ["--env", name]
    for name, value in environment.items():
        command += ["--env", f"{name}={value}"]
    return [*command, image]


def remove_containers(runtime: str, label: str) -> None:
    """Removes the containers with `label`, if any. Takes at most 40 s."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = _run(runtime, "ps", "--all", "--quiet", "--filter", f"label=atoll.launcher={label}")
        if done.returncode == 0 and done.stdout.split():
            _run(runtime, "rm", "--force", *done.stdout.split())


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
    )
