# SPDX-License-Identifier: Apache-2.0
"""Islands in containers: the command, a fake runtime that only runs what it is given, and no runtime."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from atoll.launch import containers
from atoll.launch.run import run
from launching import atoll

# Runs the command after the image's name, with only the environment that it is told to pass on.
FAKE = f"""#!{sys.executable}
import os, sys
with open(os.environ["FAKE_LOG"], "a") as log:
    print(*sys.argv[1:], file=log)
if sys.argv[1] == "version":
    sys.exit(int(os.environ.get("FAKE_VERSION", 0)))
if sys.argv[1] == "ps":
    print("c0ffee")
if sys.argv[1] != "run":
    sys.exit()
arguments, environment = sys.argv[2:], {{"PATH": os.environ["PATH"]}}
image = arguments.index("test/image:1")
for option, value in zip(arguments[:image], arguments[1:image]):
    name, equals, text = value.partition("=")
    if option == "--env" and (equals or name in os.environ):
        environment[name] = text if equals else os.environ[name]
    if option == "--workdir":
        os.chdir(value)
os.execvpe(arguments[image + 1], arguments[image + 1:], environment)
"""

TELL = """
import json, os, sys
print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}))
sys.exit(len(sys.argv) > 1 and sys.argv[1] == "fail")
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of the fake podman, which is first on the PATH, followed by a python3."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "podman").write_text(FAKE)
    (programs / "podman").chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tell.py").write_text(TELL)
    return tmp_path / "log"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATOLL_KEY_FILE", "/secret/key")
    environment = {"A": "1", "RANK_LIKE": "x", "ATOLL_ISLAND": "amd"}
    command = containers.container_command("/bin/docker", "image", "job.7", "cuda:1", environment, [Path("/logs")])
    text = " ".join(command)
    assert text.startswith("/bin/docker run --rm --init --label atoll.launcher=job.7 --network host --ipc host ")
    assert text.endswith(" --env A=1 --env RANK_LIKE=x --env ATOLL_ISLAND=amd image")
    assert f" --workdir {tmp_path} --volume {tmp_path}:{tmp_path} --volume /logs:/logs " in text
    assert " --volume /secret/key:/secret/key:ro --gpus all " in text
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        assert f" --env {name} " in text
    assert " --env ATOLL_KEY_FILE " in text


@pytest.mark.parametrize("own", [False, True], ids=["of the command", "of the island"])
def test_files_by_relative_paths_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """A runtime would take a relative path for the name of a volume; in the container it is in the same folder."""
    monkeypatch.chdir(tmp_path)
    environment = {"ATOLL_KEY_FILE": "keys/job.key"} if own else {}
    monkeypatch.setenv("ATOLL_KEY_FILE", "/other/key" if own else "keys/job.key")
    command = containers.container_command("/bin/docker", "image", "job.7", "cpu", environment, [])
    volumes = [command[place + 1] for place, word in enumerate(command) if word == "--volume"]
    assert volumes == [f"{tmp_path}:{tmp_path}", f"{tmp_path}/keys/job.key:{tmp_path}/keys/job.key:ro"]


@pytest.mark.parametrize(
    ("runtime", "device", "flags"),
    [
        ("podman", "cuda", "--device nvidia.com/gpu=all"),
        ("docker", "cuda", "--gpus all"),
        ("podman", "rocm:1", "--device /dev/kfd --device /dev/dri --group-add keep-groups"),
        ("docker", "rocm", "--device /dev/kfd --device /dev/dri --group-add video"),
        ("podman", "xpu", "--device /dev/dri --group-add keep-groups"),
        ("docker", "xpu", "--device /dev/dri --group-add video"),
        ("podman", "cpu", ""),
        ("podman", None, ""),
    ],
)
def test_device_flags(runtime: str, device: str | None, flags: str) -> None:
    command = containers.container_command(f"/bin/{runtime}", "image", "label", device, {}, [])
    options = " ".join(command)
    assert flags in options
    assert ("--device" in options or "--gpus" in options) == bool(flags)


def test_podman_runs_the_rest(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "1")
    monkeypatch.setenv("ATOLL_HOST", "label")
    islands = ["--island=inside:2,container=test/image:1,device=rocm,env=OWN=a b", "--island=outside:1"]
    done = atoll("run", "--rdzv-id=j", *islands, "tell.py", "x y")
    assert done.returncode == 0, done.stderr
    found = {line.split(" ", 1)[0]: json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines()}
    assert set(found) == {"[inside:0]", "[inside:1]", "[outside:2]"}
    for rank in (0, 1):
        inside = found[f"[inside:{rank}]"]
        assert (inside["arguments"], inside["folder"]) == (["x y"], str(tmp_path))
        environment = inside["environment"]
        assert "HIDDEN" not in environment
        expected = {
            "RANK": str(rank), "WORLD_SIZE": "3", "ATOLL_ISLAND": "inside", "ATOLL_DEVICE": f"cuda:{rank}",
            "ATOLL_HOST": "label", "OWN": "a b", "TORCHELASTIC_RUN_ID": "j",
        }  # fmt: skip
        assert {name: environment.get(name) for name in expected} == expected
    assert found["[outside:2]"]["environment"]["HIDDEN"] == "1"
    calls = log.read_text().splitlines()
    assert calls[0] == "version"
    # Nothing is left to remove after a job that ended well.
    assert sorted(call.split()[0] for call in calls[1:]) == ["run", "run"]


def test_a_restart_waits_for_the_end_of_the_containers(log: Path) -> None:
    """Killing the client does not end the container, and the next attempt needs its device."""
    done = atoll("run", "--max-restarts=1", "--island=inside:1,container=test/image:1", "tell.py", "fail")
    assert done.returncode == 1
    assert [call.split()[0] for call in log.read_text().splitlines()[1:]][:4] == ["run", "ps", "rm", "run"]


def test_a_failure_removes_the_containers(log: Path) -> None:
    done = atoll("run", "--rdzv-id=j", "--island=inside:1,container=test/image:1", "tell.py", "fail")
    assert done.returncode == 1
    assert "rank 0 failed first: island inside" in done.stderr
    calls = log.read_text().splitlines()
    (label,) = {call.split()[-1] for call in calls if call.startswith("ps ")}
    assert label.startswith("label=atoll.launcher=j.")
    assert "rm --force c0ffee" in calls
    assert f" --label {label.removeprefix('label=')} " in calls[1]


def test_no_runtime(log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "programs" / "podman").unlink()
    assert run(["--island=amd:1,container=test/image:1", "tell.py"]) == 2
    assert capfd.readouterr().err == (
        "atoll run: island 'amd' needs a container, but podman is not installed and docker is not installed: "
        "install one of them, start its service, or remove container=\n"
    )


def test_runtimes_that_do_not_run(
    log: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Path(os.environ["PATH"])
    shutil.copy(programs / "podman", programs / "docker")
    monkeypatch.setenv("FAKE_VERSION", "1")
    assert run(["--island=amd:1,container=test/image:1", "tell.py"]) == 2
    assert "podman does not run (no message) and docker does not run (no message)" in capfd.readouterr().err
    assert log.read_text() == "version\nversion\n"
