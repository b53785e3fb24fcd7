# SPDX-License-Identifier: Apache-2.0
"""The papers' experiments at tiny sizes: the right rows, pages and plots, and figures computed from the rows."""

import importlib
import json
import os
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from test_bench import run_scenarios

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def document_of(name: str, folder: Path) -> tuple[dict[str, Any], str]:
    done = run_scenarios(folder, name)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / f"{name}.json").read_text()), (folder / f"{name}.md").read_text()


@pytest.mark.verify
def test_kaitian_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("kaitian", tmp_path)
    assert [(row["configuration"], row["backend"], row["policy"]) for row in document["rows"]] == [
        ("2G", "atoll", "equal"), ("2G", "inner", "equal"), ("2M", "atoll", "equal"), ("2M", "inner", "equal"),
        ("2G+2M", "atoll", "equal"), ("2G+2M", "atoll", "kaitian"), ("2G+2M", "atoll", "minmax")
    ]  # fmt: skip
    for row in document["rows"]:
        assert sum(row["batches"]) == 16
        assert row["samples"] == 32
        assert all(seconds > 0 for seconds in row["steps_s"])
        assert 0 <= row["accuracy"][-1][1] <= 1
    assert "| 2G+2M against 2M | 17% |" in page


@pytest.mark.verify
def test_shares_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("shares", tmp_path)
    (part,) = document["parts"]
    assert [row["batches"] for row in part["sweep"]] == [[2, 6], [4, 4], [6, 2]]
    assert "minmax" in [row["policy"] for row in part["policies"]]
    assert "## 2 : 1" in page
    assert (tmp_path / "shares-2.svg").exists()


@pytest.mark.verify
def test_throttled_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("throttled", tmp_path)
    cases = [row["case"] for row in document["rows"]]
    assert cases == ["fast alone", "slow alone", "equal", "kaitian", "minmax"]
    assert all(sum(row["batches"]) == (4 if "alone" in row["case"] else 8) for row in document["rows"])
    assert "| slow alone | 4 |" in page


@pytest.mark.verify
def test_balancenet_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("balancenet", tmp_path)
    literal, live, minmax = document["rows"]
    assert (literal["contender"], live["policy"], minmax["policy"]) == (
        "Algorithm 1, literal, live", "balancenet-alg1", "minmax"
    )  # fmt: skip
    assert sum(literal["batches"]) < 16  # the paper's rule does not keep the sum
    assert sum(live["batches"]) == sum(minmax["batches"]) == 16
    assert len(minmax["averages_s"]) == 2
    assert "## Devices 4:1:1:1" in page


def test_a_contender_that_fails_leaves_the_others(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    balancenet = load("balancenet")
    started = []

    class Ranks:
        def __init__(self, *_: Any) -> None:
            started.append(self)

        def __enter__(self) -> "Ranks":
            return self

        def __exit__(self, *_: Any) -> None:
            pass

    def train(_: Any, run: Any) -> dict[str, Any]:
        if run.policy == "random":
            raise RuntimeError("rank 0: ValueError: one sample")
        steps = [1.0] * run.steps
        return {"step": {"median": 1.0}, "steps_s": steps, "late": [], "batches": [4] * 4, "samples_per_s": 1.0,
                "policy": run.policy, "compute": {"median": 1.0}, "apart": {"median": 0.0}}  # fmt: skip

    monkeypatch.setattr(balancenet, "TorchRanks", Ranks)
    monkeypatch.setattr(balancenet.uneven, "train", train)
    monkeypatch.setattr(balancenet.uneven, "seconds_to", lambda *_: None)
    settings = types.SimpleNamespace(quick=False, fraction=None)
    rows = balancenet._measure(settings, balancenet.MODELS[0], "1:1:1:1")
    assert [row["contender"] for row in rows] == [each.title for each in balancenet.CONTENDERS]
    assert [row["contender"] for row in rows if "failed" in row] == ["random"]
    assert len(started) == 2
    page = balancenet.report({"rows": rows, "steps": 40, "fraction": 0.05, "baseline": 64})
    assert "random failed on cnn, devices 1:1:1:1: rank 0: ValueError: one sample" in page


@pytest.mark.verify
def test_online_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("online", tmp_path)
    assert [row["case"] for row in document["rows"]] == ["static", "online", "known"]
    assert all(len(row["steps_s"]) == 10 for row in document["rows"])
    assert len(document["rows"][0]["plans"]) == 1
    assert "| run | before ms | static ms | online ms | known ms | recovered | plans |" in page


@pytest.mark.verify
def test_parity_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("parity", tmp_path)
    assert len(document["rows"]) == 2 * 7
    assert "| weighted | over all ranks |" in page
    rows = {(row["case"], row["seed"]): row["accuracy"] for row in document["rows"]}
    for seed in (1, 2):  # the same model, up to rounding
        assert rows["weighted, sync", seed] == pytest.approx(rows["one process", seed], abs=0.02)


@pytest.mark.verify
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_breakeven_writes_its_page(tmp_path: Path) -> None:
    document, page = document_of("breakeven", tmp_path)
    (row,) = document["rows"]
    assert row["rate"] == 10**9
    assert row["gradient_bytes"] == 4 * (192 * 256 + 256 + 256 * 256 + 256 * 10 + 10)
    assert row["advice"]["exact"]
    assert "| 0.47 MB | 1 Gbit/s |" in page


def test_plots_without_figures_say_so(load: Any) -> None:
    plots = load("plots")
    for drawing in (plots.bars("Times", "s", {}), plots.lines("Steps", "step", "ms", {"static": []})):
        assert any("no figures" in text for text in ElementTree.fromstring(drawing).itertext())


def row_of(configuration: str, policy: str, rate: float, seconds: float, late: list[int]) -> dict[str, Any]:
    return {"configuration": configuration, "backend": "atoll", "policy": policy, "samples_per_s": rate,
            "total_s": seconds, "late": late}  # fmt: skip


def test_what_is_claimed_of_kaitian(load: Any) -> None:
    kaitian = load("kaitian")
    rows = [row_of("2G", "equal", 100, 20, []), row_of("2M", "equal", 140, 14, []),
            row_of("1G+1M", "minmax", 115, 17, []), row_of("2G+1M", "minmax", 153, 13, []),
            row_of("2G+2M", "minmax", 228, 9, []), row_of("2G+2M", "equal", 190, 11, [])]  # fmt: skip
    assert kaitian.of_ideal(rows, "2G+2M") == pytest.approx(0.95)
    assert kaitian.of_ideal(rows, "2G+1M") == pytest.approx(0.9)
    assert kaitian.saved(rows, "2G") == pytest.approx(0.55)
    assert kaitian.saved(rows, "2G", "equal") == pytest.approx(0.45)
    assert kaitian.gain_over_subsets(rows, "2G+1M") == pytest.approx(13 / 17 - 1)
    assert kaitian.overhead(rows, "2G") is None
    rows.append({**row_of("2G", "equal", 101, 19, []), "backend": "inner"})
    assert kaitian.overhead(rows, "2G") == pytest.approx(20 / 19 - 1)
    assert kaitian.best(rows, "2G")["total_s"] == 20
    rows[1]["late"] = [0]  # no figure from it
    assert kaitian.of_ideal(rows, "2G+2M") is None
    assert kaitian.saved(rows, "2M") is None


def test_the_sweep_judges_policies(load: Any) -> None:
    shares = load("shares")

    def step(policy: str, seconds: float) -> dict[str, Any]:
        return {"policy": policy, "step": {"median": seconds}, "late": []}

    part = {"sweep": [step("fixed", 3.0), step("fixed", 2.0)], "policies": [step("minmax", 2.02)]}
    assert shares.over_sweep(part, "minmax") == pytest.approx(1.01)
    part["sweep"][0]["late"] = [1]  # the best share may have been the one without a figure
    assert shares.over_sweep(part, "minmax") is None


def test_balancenet_is_judged_by_samples_and_work(load: Any) -> None:
    balancenet = load("balancenet")

    def row(contender: str, rate: float) -> dict[str, Any]:
        return {"model": "cnn", "layout": "1:1:1:1", "contender": contender, "samples_per_s": rate, "late": []}

    rows = [row("equal", 100), row("random", 70), row("minmax", 98)]
    assert balancenet.over_others(rows, "cnn", "1:1:1:1") == pytest.approx(0.98)
    rows[0]["late"] = [2]
    assert balancenet.over_others(rows, "cnn", "1:1:1:1") is None
    rows[0] = {"model": "cnn", "layout": "1:1:1:1", "contender": "equal", "failed": "rank 0: ValueError: one sample"}
    assert balancenet.over_others(rows, "cnn", "1:1:1:1") == pytest.approx(98 / 70)
    assert balancenet.work_done({"batches": [42, 42, 42, 42]}, 64) == pytest.approx(42 / 64)
    assert balancenet.averages([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 6.0]


def test_what_following_plans_recover(load: Any) -> None:
    online = load("online")

    def row(case: str, after: float, late: list[int] | None = None) -> dict[str, Any]:
        return {"case": case, "turn": 0, "steps_s": [1.0] * 4 + [3.0] * 2 + [after] * 4, "late": late or [],
                "plans": [{}] * 2}  # fmt: skip

    rows = [row("static", 3.0), row("online", 2.1), row("known", 2.0)]
    document = {"rows": rows, "change": 4, "after": 6, "last": 4}
    (found,) = online.recovered(document)
    assert found["share"] == pytest.approx(0.9)
    assert (found["before"], found["plans"]) == (1.0, 2)
    rows[1]["late"] = [0]
    assert online.recovered(document) == []


def test_differences_of_accuracy_are_paired(load: Any) -> None:
    parity = load("parity")
    rows = [{"case": case, "seed": seed, "accuracy": accuracy} for case, seed, accuracy in (
        ("one process", 1, 0.80), ("one process", 2, 0.90), ("other", 2, 0.89), ("other", 1, 0.79))]  # fmt: skip
    found = parity.differences(rows, "other")
    assert [found[name] for name in ("mean", "low", "high")] == pytest.approx([-1.0, -1.0, -1.0])


def test_advice_is_right_where_it_matters(load: Any) -> None:
    breakeven = load("breakeven")

    def row(both: float, best: list[int]) -> dict[str, Any]:
        return {"alone": {"median": 1.0}, "both": {"median": both}, "advice": {"best": best}}

    assert breakeven.is_right(row(0.6, [0, 1]))
    assert not breakeven.is_right(row(0.6, [0]))
    assert not breakeven.is_right(row(1.4, [0, 1]))
    assert breakeven.is_right(row(0.98, [0]))
    profile = {"sizes": [{"batch": batch, "seconds": 0.01 * batch} for batch in (8, 16, 32)]}
    assert breakeven.advised([profile] * 2, 32, 10**6, 1e8)["best"] == [0, 1]
    assert breakeven.advised([profile] * 2, 32, 10**6, 1e6)["best"] == [0]


def test_the_papers_have_aims(load: Any, tmp_path: Path) -> None:
    aims = load("aims_table")
    rows = [row_of("2G", "equal", 100, 20, []), row_of("2M", "equal", 140, 14, []),
            row_of("2G+2M", "minmax", 204, 12, [])]  # fmt: skip
    (tmp_path / "kaitian.json").write_text(json.dumps({"quick": False, "busy": False, "rows": rows}))
    lines = [line for line in aims.summary(tmp_path).splitlines() if "KAITIAN" in line or "ideal sum" in line]
    assert "40%, 2G+2M against 2G, minmax | **missed** |" in lines[0]
    assert "14.3%, 2G+2M against 2M, minmax | **missed** |" in lines[1]
    assert "85%, 2G+2M | **missed** |" in lines[2]


@pytest.mark.verify
@pytest.mark.parametrize("name", ["mobilenet", "cnn", "alexnet", "resnet", "vgg", "bytes", "batch_normed", "wide"])
def test_models_learn_from_their_samples(load: Any, name: str) -> None:
    models, samples = load("models"), load("samples")
    train, test = samples.load("text" if name == "bytes" else "digits")
    batch = [tensor[:4] for tensor in train.tensors]
    net = models.make(name, 1)
    models.loss_of(net, batch).backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
    assert any(parameter.grad.abs().sum() > 0 for parameter in net.parameters())
    assert len(test) * 3.9 < len(train) < len(test) * 4.1


def test_ranks_begin_with_equal_parameters(load: Any) -> None:
    models = load("models")
    first, again, other = (models.make("cnn", seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_cifar10_is_read_from_its_binary_files(load: Any, tmp_path: Path) -> None:
    samples = load("samples")
    with pytest.raises(RuntimeError, match=r"holds no data_batch_\*\.bin"):
        samples.cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes([7] + [255] * 3072 + [3] + [0] * 3072))
    (tmp_path / "test_batch.bin").write_bytes(bytes([1] + [128] * 3072))
    train, test = samples.cifar10(tmp_path)
    assert train.tensors[1].tolist() == [7, 3]
    assert train.tensors[0].shape == (2, 3, 32, 32)
    assert train.tensors[0][0].min() > train.tensors[0][1].max()
    assert len(test) == 1


def test_only_whole_steps_count(load: Any) -> None:
    uneven = load("uneven")
    assert uneven.whole_steps([64, 64, 64, 17, 64, 64], 1) == [1, 2, 4, 5]
    row = {"accuracy": [[1, 0.5], [3, 0.9]], "steps_s": [1.0, 2.0, 3.0]}
    assert uneven.seconds_to(row, 0.8) == 6
    assert uneven.seconds_to(row, 0.95) is None


@pytest.mark.verify
def test_split_papers_writes_its_page(tmp_path: Path) -> None:
    _, page = document_of("split_papers", tmp_path)
    document = json.loads((tmp_path / "samples/split_papers.json").read_text())
    assert [(case["profile"], case["encoding"]) for case in document["cases"]] == [
        ("nsdi25_VGG19_BN", "as sent"), ("nsdi25_VGG19_BN", "compact")
    ]  # fmt: skip
    for case in document["cases"]:
        for of in case["replays"].values():
            assert of["bound"] <= of["cut"]
            assert of["rows"]["auto, guarded"]["seconds"]["most"] <= case["guard_deadline"] * (1 + 1e-6)
    assert "Simulated on published profiles" in page
    assert "## Where the tables contradict themselves" in page
    for part, heading in (("energy", "Energy"), ("breakdown", "Where the time goes"), ("rates", "At constant rates"),
                          ("forecasts", "Which forecast serves best")):  # fmt: skip
        assert f"## {heading}" in (tmp_path / f"split_papers_{part}.md").read_text()
    assert (tmp_path / "split-vgg19_bn-compact-cuts.svg").exists()


def test_the_papers_gains_follow_from_their_tables(load: Any) -> None:
    claims = load("split_claims")
    rows = claims.published()
    spread = claims.gains(rows)
    (vgg,) = (gain for gain in spread if (gain["paper"], gain["model"], gain["environment"]) == (
        claims.INTRA, "VGG19", "indoors"))  # fmt: skip
    assert vgg["fastest"] == "SPSO-GA"
    assert vgg["latency"] == pytest.approx(1 - 54.62 / 69.08)
    assert vgg["energy"] == pytest.approx(1 - 0.32 / 0.38)
    found = list(claims.contradictions(rows, spread))
    assert any("DenseNet, Intra-DP, indoors: Intra-DP is slower than local inference by 53%" in text for text in found)
    assert any("DenseNet121, Intra-DP, indoors: a standard deviation of 850.7 ms" in text for text in found)
