# SPDX-License-Identifier: Apache-2.0
"""Checkpoints move between plans, schedules and numbers of ranks; loaders give each pipeline its part."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

import atoll
from atoll.pipeline import checkpoints
from atoll.pipeline.plan import Pipe, Plan, Stage
from pipeline_models import (
    MODELS,
    SEED,
    TOKENS,
    VOCABULARY,
    adam,
    alone,
    batch,
    check_close,
    check_same,
    mean_loss,
    train_alone,
    train_together,
)
from support import Ranks, crossed, raises

Arguments = dict[str, Any]


def made(model: str, **arguments: Any) -> "atoll.pipeline.Pipeline":
    return atoll.pipeline.Pipeline(MODELS[model], batch(8)[0], **{"seed": SEED, **arguments})


def moving_body(rank: int, folder: str, model: str, before: Arguments, after: Arguments) -> None:
    saved = made(model, **before)
    update = adam(saved.parameters())
    update.param_groups[0]["lr"] = 5e-3
    train_together(saved, 2, 8, update=update)
    saved.save(folder, update, step=2, loader={"position": [16]})

    loaded = made(model, **after)
    other = adam(loaded.parameters())
    assert loaded.load(folder, other) == {"step": 2, "loader": {"position": [16]}}
    assert other.param_groups[0]["lr"] == 5e-3
    reference = alone(MODELS[model])
    update = adam(reference.parameters())
    update.param_groups[0]["lr"] = 5e-3
    train_alone(reference, 2, 8, update=update)
    check_same(loaded, reference)
    expected, _ = train_alone(reference, 2, 8, first=2, update=update)
    own, _ = train_together(loaded, 2, 8, first=2, update=other)
    check_close(own, expected)
    check_same(loaded, reference)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize(
    ("model", "plans"),
    crossed(
        ["llama", "gpt2"],
        [
            ({"plan": [1, 1, 1, 1], "micro_batches": 4}, {"plan": [3, 1], "replicas": 2, "micro_batches": 2}),
            ({"plan": [0, 4], "replicas": 2, "micro_batches": [1, 3], "schedule": "gpipe"},
             {"plan": [1, 2, 3, 1], "micro_batches": 4}),
            ({"plan": [2, 3, 1, 1], "micro_batches": 4}, {"plan": [7], "replicas": 4, "micro_batches": 2}),
        ],
    ),
)  # fmt: skip
def test_another_plan(ranks: Ranks, tmp_path: Path, model: str, plans: tuple[Arguments, Arguments]) -> None:
    before, after = plans
    after = {**after, "seed": SEED + 1}  # the loaded values count
    ranks.run(moving_body, str(tmp_path / "state"), model, before, after)


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
def test_chunks_of_another_schedule(ranks: Ranks, tmp_path: Path) -> None:
    before = {"plan": [2, 1, 1, 3], "replicas": 2, "micro_batches": 2, "schedule": "interleaved"}
    after = {"plan": [1, 1, 1, 1], "micro_batches": 4}
    ranks.run(moving_body, str(tmp_path / "state"), "gpt2", before, after)


def whole_body(rank: int, folder: str) -> None:
    pipe = made("gpt2", plan=[2, 2], micro_batches=2)
    train_together(pipe, 1, 8)
    pipe.save(folder)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_one_process_loads_the_whole_model(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(whole_body, str(tmp_path / "state"))
    model = MODELS["gpt2"]()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=tmp_path / "state", no_dist=True)
    model.load_state_dict(state["model"])
    reference = alone(MODELS["gpt2"])
    train_alone(reference, 1, 8)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, reference.get_parameter(name), rtol=0, atol=1e-10)


def cut_off_body(rank: int, folder: str) -> None:
    pipe = made("gpt2", plan=[2, 2], micro_batches=2)
    pipe.save(folder, step=1)
    saved = {name: parameter.detach().clone() for name, parameter in pipe.named_parameters()}
    train_together(pipe, 1, 8)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(checkpoints._Writer, "write_data", lambda *_: 1 / 0)
        with raises(checkpoint.api.CheckpointException, "ZeroDivisionError"):
            pipe.save(folder, step=2)
    assert pipe.load(folder) == {"step": 1}
    for name, parameter in pipe.named_parameters():
        assert torch.equal(parameter, saved[name]), name
    pipe.save(folder, step=3)
    assert pipe.load(folder) == {"step": 3}
    assert len(list(Path(folder).glob("*.distcp"))) == 2
    dist.barrier()


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_a_save_that_fails_leaves_the_earlier_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(cut_off_body, str(tmp_path / "state"))


def wrong_body(rank: int, folder: str) -> None:
    pipe = made("gpt2", plan=[2, 2], micro_batches=2)
    pipe.save(folder)
    optimizer = adam(pipe.parameters())
    with raises(ValueError, "was saved without an optimizer"):
        pipe.load(folder, optimizer)
    with raises(ValueError, "has no 'model.", "another model"):
        made("llama", plan=[2, 2], micro_batches=2).load(folder)
    wider = functools.partial(MODELS["gpt2"], n_inner=24)
    other = atoll.pipeline.Pipeline(wider, batch(8)[0], plan=[2, 2], micro_batches=2)
    with raises(ValueError, "mlp.c_fc", "another model"):
        other.load(folder)
    longer = functools.partial(MODELS["gpt2"], 5)
    other = atoll.pipeline.Pipeline(longer, batch(8)[0], plan=[2, 3], micro_batches=2)
    told = ("rank 1 has a ValueError",) if rank == 0 else ()
    with raises(ValueError, "transformer.h.4", "another model", *told):
        other.load(folder)
    with raises(ValueError, "that the pipeline does not have"):
        pipe.save(folder, adam([torch.nn.Parameter(torch.zeros(2))]))
    dist.barrier()


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_states_of_something_else(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(wrong_body, str(tmp_path / "state"))


def groups_alone_body(rank: int, folder: str) -> None:
    saved, loaded = made("gpt2", plan=[2, 2], micro_batches=2), made("gpt2", plan=[1, 3], micro_batches=2)
    saved.save(folder, torch.optim.SGD(saved.parameters(), lr=0.5))
    other = torch.optim.SGD(loaded.parameters(), lr=0.1)
    loaded.load(folder, other)
    assert other.param_groups[0]["lr"] == 0.5
    saved.save(f"{folder}-named", adam(saved.named_parameters()))
    named = adam(loaded.named_parameters())
    loaded.load(f"{folder}-named", named)
    assert named.param_groups[0]["param_names"] == [name for name, _ in loaded.named_parameters()]


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_optimizers_without_state_and_with_names(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(groups_alone_body, str(tmp_path / "state"))


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences with their numbers."""

    def __init__(self, count: int) -> None:
        random = torch.Generator().manual_seed(1)
        self.rows = torch.randint(VOCABULARY, (count, TOKENS), generator=random)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"number": torch.tensor(index), "inputs": self.rows[index]}


def loader_body(rank: int, shares: list[int]) -> None:
    pipe = made("gpt2", plan=[1, 3], replicas=2, micro_batches=shares)
    reference = alone(MODELS["gpt2"])
    update, alone_update = adam(pipe.parameters()), adam(reference.parameters())
    size, seen = 2 * sum(shares), []
    loader = pipe.loader(Sentences(5 * size + 3), size)
    for part in loader:
        assert len(part["inputs"]) == 2 * shares[pipe.place]
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, part["number"].tolist())
        assert told[0] == told[2], "ranks of one pipeline have the same samples"
        assert told[1] == told[3]
        numbers = told[0] + told[1]
        seen += numbers
        loss = pipe.step(part["inputs"], part["inputs"])
        update.step()
        alone_update.zero_grad()
        rows = Sentences(5 * size + 3).rows[numbers]
        expected = mean_loss(reference, rows, rows)
        expected.backward()
        alone_update.step()
        check_close([loss.item()], [expected.item()])
    assert len(seen) == len(set(seen)) == 5 * size
    check_same(pipe, reference)
    state = loader.state_dict()
    assert state["epoch"] == 1
    assert state["position"] == 0


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
@pytest.mark.parametrize("shares", [[2, 2], [3, 2]])
def test_loader(ranks: Ranks, shares: list[int]) -> None:
    ranks.run(loader_body, shares)


def one_loader_body(rank: int) -> None:
    pipe = made("gpt2", plan=[1, 3], micro_batches=2)
    for part in pipe.loader(Sentences(9), 4, shuffle=False):
        loss = pipe.step(part["inputs"], part["inputs"])
        assert loss.isfinite()
        numbers = part["number"].tolist()
        assert numbers in ([0, 1, 2, 3], [4, 5, 6, 7])
    with raises(ValueError, "a batch of 5 samples", "2 micro-batches", "use 4 or 6"):
        pipe.loader(Sentences(9), 5)
    with raises(ValueError, "shares cannot be given"):
        pipe.loader(Sentences(9), 4, shares=[1])
    with raises(ValueError, "drop_last=False cannot be given"):
        pipe.loader(Sentences(9), 4, drop_last=False)


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_loader_of_one_pipeline(ranks: Ranks) -> None:
    ranks.run(one_loader_body)


def unlike_lengths_body(rank: int) -> None:
    pipes = (Pipe((Stage(0, 2, 0), Stage(2, 7, 1)), 2), Pipe((Stage(0, 2, 2), Stage(2, 4, 3), Stage(4, 7, 4)), 3))
    pipe = made("gpt2", plan=Plan(pipes))
    with raises(ValueError, "pipelines of [2, 3] ranks", "pipe.plan.shares"):
        pipe.loader(Sentences(20), 10)
    dist.barrier()


@pytest.mark.parametrize("ranks", ["AABBB"], indirect=True)
def test_loader_of_pipelines_of_unlike_lengths(ranks: Ranks) -> None:
    ranks.run(unlike_lengths_body)
