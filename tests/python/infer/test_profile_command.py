# SPDX-License-Identifier: Apache-2.0
"""`atoll profile BUNDLE`: what it measures, shows and writes, how `atoll plan infer` uses it, and the errors of
wrong calls."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from atoll import _C
from atoll.cli import app
from atoll.infer import Bundle, capture
from atoll.infer import graph as graphs
from atoll.infer.planning import watts as power
from atoll.infer.planning.measuring import Wanted, measure
from atoll.profiling.power import EnergyMeter
from serving import Serve

RECORDS = Path(__file__).resolve().parents[2] / "data" / "intradp" / "power_from_logs.csv"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))


@pytest.fixture(autouse=True)
def _no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides this machine's power meter, whose use would take seconds."""
    monkeypatch.setattr(power, "find_meter", lambda _device: None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return capture(Net().eval(), (torch.zeros(1, 3, 24, 20),)).save(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def profile(bundle: Path, tmp_path: Path) -> Path:
    """A profile of this machine, written by the command."""
    path = tmp_path / "here.json"
    shown("profile", str(bundle), "--repeat", "1", "--output", str(path))
    return path


def run(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)


def shown(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def document_of(*arguments: str) -> dict[str, Any]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def merged(bundle: Path, local: Path, server: Path, output: Path, *others: str) -> Path:
    shown(
        "profile", str(bundle), "--local-profile", str(local), "--server-profile", str(server),
        "--output", str(output), *others,
    )  # fmt: skip
    return output


def test_a_table_of_operators(bundle: Path, tmp_path: Path) -> None:
    lines = shown("profile", str(bundle), "--repeat", "2", "--output", str(tmp_path / "out.json"))
    nodes = len(Bundle.load(bundle).graph["nodes"])
    assert lines[0] == f"{bundle.name[:16]}: {nodes} operators, rows along dimension 2 of image"
    assert lines[1].startswith(f"here: cpu (torch {torch.__version__.partition('+')[0]}), ")
    assert lines[2].startswith("watts here: ")
    assert "operator rows here server bytes out share" in lines
    assert sum("aten::" in line for line in lines) == nodes
    (conv,) = (line for line in lines if "aten::conv2d" in line)
    assert conv.startswith("0 aten::conv2d 24 ")
    assert " 11.52 kB " in conv  # 6 x 24 x 20 floats
    assert any(line.startswith("all ") for line in lines)
    assert lines[-1].startswith(f"Atoll: written to {tmp_path / 'out.json'}; atoll plan infer needs a server's times")
    few = shown("profile", str(bundle), "--repeat", "1", "--top", "1")
    assert sum("aten::" in line for line in few) == 1
    assert any(f"all, {nodes} of them not shown" in line for line in few)  # and the input


def test_everything_as_json(bundle: Path) -> None:
    document = document_of("profile", str(bundle), "--repeat", "1", "--json")
    assert document["bundle"] == bundle.name
    assert document["divided"] == {"input": "image", "dim": 2}
    assert document["server"] is None
    rows = document["rows"]
    assert [row["node"] for row in rows] == list(range(-1, len(rows) - 1))
    assert rows[0]["bytes"] == 4 * 3 * 24 * 20
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["local"] > 0 for row in rows[1:])
    assert all(row["server"] is None for row in rows)
    assert document["local"]["seconds"] >= sum(row["local"] for row in rows) * (1 - 1e-9)


def test_the_planner_reads_what_is_written(bundle: Path, profile: Path, tmp_path: Path) -> None:
    model = merged(bundle, profile, profile, tmp_path / "model.json", "--name", "small")
    saved = json.loads(model.read_text())
    profiles = saved["profiles"]
    assert profiles["local"] == profiles["server"] == json.loads(profile.read_text())["profiles"]["local"]
    assert profiles["local"]["model"] == bundle.name
    document = document_of("plan", "infer", str(model), "--rate", "93M", "--policy", "local", "--json", "-")
    assert document["model"] == "small"
    assert document["input_bytes"] == 4 * 3 * 24 * 20
    whole = sum(fixed + rows for fixed, rows in costs(bundle, profiles["local"]))
    assert document["robot_seconds"] == pytest.approx(whole)
    assert document["server_seconds"] == pytest.approx(whole)
    assert document["plans"][0]["seconds"] == pytest.approx(whole)
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,up_bytes_per_second,down_bytes_per_second\n0,1e6,1e6\n0.1,2e6,2e6\n")
    replayed = document_of("plan", "infer", str(model), "--trace", str(trace), "--policy", "auto", "--json", "-")
    assert {row["policy"] for row in replayed["replay"]} == {"auto"}


def costs(bundle: Path, profile: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns the seconds of each node: for a launch, and for all its rows."""
    graph = Bundle.load(bundle).graph
    text = json.loads(_C.infer_profiled_operators(graphs.to_text(graph).decode(), json.dumps(profile)))
    rows: dict[int, int] = {}  # for a node that makes a state first, those of the state
    for node, operator in zip(text["nodes"], text["operators"], strict=True):
        rows.setdefault(node, operator["rows"])
    found = [(profile["nodes"][node][0], profile["nodes"][node][1] * rows[node]) for node in rows if node >= 0]
    assert len(found) == len(graph["nodes"])
    return found


def test_one_machine_alone_is_no_plan(profile: Path) -> None:
    assert "has times of only one machine" in refusal("plan", "infer", str(profile), "--rate", "93M")


def test_a_server_is_measured(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "both.json"
    with Serve(tmp_path) as server:
        for _ in range(2):  # nothing has to be uploaded the second time
            document = document_of(
                "profile", str(bundle), "--repeat", "1", "--server", server.address, "--key-file",
                str(server.key_file), "--output", str(output), "--json",
            )  # fmt: skip
            assert document["server"]["device"] == "cpu"
            assert document["server"]["seconds"] > 0
            assert all(row["server"] > 0 for row in document["rows"][1:])
    lines = shown(
        "profile", str(bundle), "--local-profile", str(output), "--server-profile", str(output), "--top", "3"
    )  # fmt: skip
    assert any(line.startswith("server: cpu (torch ") for line in lines)  # the file's own machine
    plans = document_of("plan", "infer", str(output), "--rate", "1G", "--json", "-")["plans"]
    assert {plan["policy"] for plan in plans} >= {"local", "offload", "auto"}


def test_watts_that_are_given(bundle: Path, profile: Path, tmp_path: Path) -> None:
    model = merged(bundle, profile, profile, tmp_path / "model.json", "--watts", "20/5/1")
    document = document_of("plan", "infer", str(model), "--rate", "93M", "--policy", "local", "--json", "-")
    assert document["watts"] == {"compute_watts": 20, "idle_watts": 5, "radio_watts": 1}
    assert document["watts_source"] == "the command line"
    other = document_of(
        "plan", "infer", str(model), "--rate", "93M", "--policy", "local", "--watts", "9/3", "--json", "-"
    )  # fmt: skip
    assert other["watts"]["compute_watts"] == 9
    with RECORDS.open() as file:
        found = [float(row["board_W_mean"]) for row in csv.DictReader(file)
                 if (row["model"], row["system"]) == ("VGG19_BN", "Local")]  # fmt: skip
    named = merged(bundle, profile, profile, tmp_path / "vgg.json", "--watts", str(RECORDS), "--name", "VGG19_BN")
    watts = json.loads(named.read_text())["watts"]
    assert watts["compute_watts"] == pytest.approx(sum(found) / len(found))
    assert watts["source"] == "records of VGG19_BN for computing"


def test_watts_that_are_not_known_are_the_published_ones(bundle: Path, profile: Path, tmp_path: Path) -> None:
    model = merged(bundle, profile, profile, tmp_path / "model.json")
    assert "watts" not in json.loads(model.read_text())
    document = document_of("plan", "infer", str(model), "--rate", "93M", "--policy", "local", "--json", "-")
    assert document["watts_source"].startswith("the published three states")


def test_watts_that_are_measured(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "IDLE_SECONDS", 0.02)
    monkeypatch.setattr(power, "BUSY_SECONDS", 0.02)
    told: list[str] = []
    begin = time.monotonic()
    meter = EnergyMeter("a meter", joules=lambda: 12 * (time.monotonic() - begin))
    found = power.measured_watts(Bundle.load(bundle), str(bundle), "cpu", told.append, meter)
    assert found is not None
    watts, source = found
    assert watts["compute_watts"] == pytest.approx(12, rel=0.2)
    assert watts["idle_watts"] == pytest.approx(12, rel=0.2)
    assert source == "measured on cpu by a meter; the radio's are published"
    assert told == ["watts at rest", "watts of the model"]
    assert list(bundle.parent.iterdir()) == [bundle]  # nothing was saved a second time


def test_without_a_meter_nothing_is_measured(bundle: Path) -> None:
    assert power.measured_watts(Bundle.load(bundle), str(bundle), "cpu", lambda _text: None) is None


def test_progress_is_reported(bundle: Path) -> None:
    told: list[tuple[str, float | None]] = []
    measure(Wanted(str(bundle), repeat=3), lambda text, share: told.append((text, share)))
    assert told[0] == ("loading the model", None)
    shares = [share for text, share in told if text == "timing operators on cpu" and share is not None]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1
    assert len(shares) > 3 * len(Bundle.load(bundle).graph["nodes"])


def test_a_progress_callback_can_end_it(bundle: Path) -> None:
    def tell(_text: str, share: float | None) -> None:
        if share is not None and share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(Wanted(str(bundle), repeat=1000), tell)


def test_the_group_knows_its_other_commands(bundle: Path) -> None:
    assert "--replay" in " ".join(shown("profile", "link", "--help"))
    listed = " ".join(shown("profile", "--help"))
    assert "link" in listed
    assert "model" in listed
    assert any("aten::conv2d" in line for line in shown("profile", "model", str(bundle), "--repeat", "1"))
    assert any("aten::conv2d" in line for line in shown("profile", "--repeat", "1", str(bundle)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:77"], "--device cuda:77: "),
        (["--device", "abacus"], "abacus"),
        (["--repeat", "0"], "--repeat"),
        (["--server", "127.0.0.1:1"], "--server needs --key-file, the file that"),
        (["--server", "127.0.0.1:1", "--key-file", "none"], "key_file none does not exist"),
        (["--server", "127.0.0.1:1", "--server-profile", "x"], "remove one of them"),
        (["--local-profile", "none.json"], "none.json cannot be read: No such file or directory: give a file that"),
        (["--watts", "much"], "give COMPUTE/IDLE"),
        (["--output", "/proc/profile.json"], "/proc/profile.json cannot be written"),
    ],
)
def test_wrong_calls(bundle: Path, arguments: list[str], message: str) -> None:
    assert message in refusal("profile", str(bundle), *arguments)


def test_files_that_do_not_fit(bundle: Path, profile: Path, tmp_path: Path) -> None:
    assert "give a folder of atoll export" in refusal("profile", str(tmp_path))
    value = json.loads(profile.read_text())
    wrong = tmp_path / "wrong.json"

    def told(change: Any) -> str:
        wrong.write_text(json.dumps(change))
        return refusal("profile", str(bundle), "--local-profile", str(wrong))

    assert "does not hold a profile: give a file that atoll profile wrote" in told([1])
    assert "does not hold a profile" in told({"profiles": {}})
    local = value["profiles"]["local"]
    assert "is of the bundle aaaaaaaaaaaaaaaa" in told({"profiles": {"local": local | {"model": "a" * 64}}})
    assert "measure this graph" in told({"profiles": {"local": local | {"nodes": local["nodes"][:-1]}}})
    assert "which is not a number of seconds from 0" in told({"profiles": {"local": local | {"total": -1}}})
    wrong.write_text("{")
    assert "is not JSON" in refusal("profile", str(bundle), "--local-profile", str(wrong))


def test_a_server_that_is_not_there(bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    _C.make_key_file(str(key))
    told = refusal("profile", str(bundle), "--repeat", "1", "--server", "127.0.0.1:1", "--key-file", str(key))
    assert "--server 127.0.0.1:1: the server at 127.0.0.1:1 cannot be reached" in told


def test_how_long_to_wait_for_a_server_is_a_number(bundle: Path, tmp_path: Path) -> None:
    for seconds in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match=f"seconds is {seconds}.*: give seconds from 0 to 1e9"):
            _C.infer_server_profile(str(bundle), "127.0.0.1:1", str(tmp_path / "key"), seconds)


def test_texts_that_are_cut_can_be_read() -> None:
    with pytest.raises(RuntimeError, match="is not JSON: xä"):
        _C.infer_profiled_operators("x" + 60 * "ä", "{}")
