# SPDX-License-Identifier: Apache-2.0
"""Input that atoll.DataLoader cannot work with is an error on every rank, which says what to give instead."""

import ast
import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler

import atoll
from atoll.loading import loader as loader_module
from client_ranks import on_layouts
from support import warnings_of_plans
from test_loader import BATCH, SAMPLES, UNMEASURED, check_exactly_once, dataset, on_all_ranks, train, wrapped
from training import network

Options = dict[str, Any]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def fixed(*shares: float) -> Options:
    return {"policy": "fixed", "shares": shares}


def replay(*batches: int) -> Options:
    return {"settings": atoll.training.Settings(measure=False, replay=[{"step": 0, "batches": list(batches)}])}


# On two ranks: the arguments of both, the error, and its text.
ALIKE: list[tuple[Options, type[Exception], str]] = [
    (fixed(1), ValueError, "1 shares for 2 ranks: give one for each"),
    (fixed(1, 2, 3), ValueError, "3 shares for 2 ranks: give one for each"),
    (fixed(1, -2), ValueError, "the share of rank 1 is -2.0: give a finite number of at least 0"),
    (fixed(math.nan, 1), ValueError, "the share of rank 0 is nan: give a finite"),
    (fixed(math.inf, 1), ValueError, "the share of rank 0 is inf: give a finite"),
    (fixed(0, 0), ValueError, "all shares are 0: give at least one rank a share above 0"),
    ({"policy": "fixed"}, ValueError, "belong together: pass both, or neither"),
    ({"policy": "fastest"}, ValueError, 'unknown policy "fastest": choose from equal, random, .*minmax'),
    ({"global_batch": 1}, ValueError, r"cannot give 1 to each of 2 ranks: raise global_batch, or Settings\(least=0\)"),
    ({"global_batch": 0}, ValueError, "global_batch=0: give at least 1 sample"),
    ({"global_batch": -8}, ValueError, "global_batch=-8: give at least 1 sample"),
    ({"global_batch": 24.0}, TypeError, "global_batch=24.0 is a float: give an integer number"),
    ({"max_batch": 5}, ValueError, "hold 10 samples.* but the global batch is 24: .*lower"),
    ({"max_batch": 0}, ValueError, "max_batch=0: give at least 1"),
    ({"micro_batch": 0}, ValueError, "micro_batch=0: give at least 1"),
    ({"batch_size": 3}, ValueError, "batch_size cannot be given: the plan sizes the batches"),
    ({"num_workers": 2, "in_order": False}, ValueError, "in_order=False cannot be given: .*remove it"),
    ({"drop_last": True, "global_batch": 200}, ValueError, "an epoch has 157 samples, but a step has 200; low"),
    ({"sampler": []}, ValueError, "the sampler gives no samples"),
    ({"sampler": [5, SAMPLES]}, ValueError, "sampler gave index 157, but the dataset has 157 samples: give 0 to 156"),
    ({"sampler": [-1, 5]}, ValueError, "the sampler gave index -1"),
    ({"weights": [1.0, 2.0]}, ValueError, "2 weights for a dataset of 157 samples: give one for each sample"),
    ({"sampler": [0], "weights": [1.0] * SAMPLES}, ValueError, "give a sampler or weights, not both"),
    ({"weights": [1.0] * SAMPLES, "samples": 0}, ValueError, "samples=0: give at least 1"),
    ({"dataset": []}, ValueError, "the dataset is empty"),
    ({"dataset": iter([1])}, TypeError, "is not a dataset: it needs __len__ and __getitem__"),
    ({"dataset": Endless()}, ValueError, r"has no length: pass atoll.DataLoader\(samples=...\)"),
    ({"model": network()}, TypeError, "pass what reduces the gradients"),
    ({"model": None}, ValueError, 'makes uneven shares, .* pass model=DistributedDataParallel\\(net\\), or policy="eq'),
    ({"model": None, "policy": "equal", **replay(4, 20)}, ValueError, "makes uneven shares"),
    (replay(8, 8, 8), ValueError, "replayed plan of step 0 is for 3 ranks, but this job has 2: replay plans for the"),
    (replay(30, -6), ValueError, r"\[30, -6\]: give batches of at least 0 that add up to global_batch=24"),
    (replay(8, 8), ValueError, r"\[8, 8\]: give batches of at least 0 that add up to global_batch=24"),
    ({"settings": atoll.training.Settings(changes_per_epoch=0)}, ValueError, "changes_per_epoch=0.: give at least 1"),
    ({"num_workers": -1}, ValueError, "num_workers"),
]  # fmt: skip

# The arguments of rank 0, those of rank 1, and the error of all ranks.
UNLIKE: list[tuple[Options, Options, str]] = [
    ({}, {"global_batch": 25}, "global_batch differs: 24 on rank 0; 25 on rank 1. Give all ranks the same arguments"),
    ({}, {"dataset": dataset(SAMPLES + 1)}, "dataset differs: 157 on rank 0; 158 on rank 1. Give all ranks the same"),
    ({"seed": 1}, {"seed": 2}, "seed differs: 1 on rank 0; 2 on rank 1"),
    ({}, {"drop_last": True}, "drop_last differs"),
    ({}, {"policy": "equal"}, 'policy differs: "minmax" on rank 0; "equal" on rank 1'),
    (fixed(1, 2), fixed(2, 1), r"shares differs: \[1.0, 2.0\] on rank 0; \[2.0, 1.0\] on rank 1"),
    (
        {},
        {"settings": atoll.training.Settings(measure=False, update_interval=7)},
        "settings.update_interval differs: 50 on",
    ),
    (replay(4, 20), replay(20, 4), 'settings.replay differs: "1 plans'),
    ({}, {"elements": len}, "elements differs"),
    ({"policy": "equal"}, {"policy": "equal", "model": None}, "model differs"),
    ({"sampler": range(9)}, {"sampler": range(8)}, "samples differs: 9 on rank 0; 8 on rank 1"),
]

# The arguments of rank 1 and its error; rank 0's error names rank 1 and has the same text.
OF_ONE: list[tuple[Options, str]] = [
    ({"dataset": []}, "the dataset is empty"),
    ({"micro_batch": -3}, "micro_batch=-3: give at least 1 sample"),
    ({"model": network()}, "pass what reduces the gradients"),
    ({"sampler": [SAMPLES]}, "the sampler gave index 157"),
    ({"batch_size": 3}, "batch_size cannot be given"),
    ({"no_such_option": 3}, "no_such_option"),
]


def make(options: Options) -> atoll.DataLoader:
    given: Options = {"dataset": dataset(), "global_batch": BATCH, "settings": UNMEASURED, "model": wrapped()} | options
    return atoll.DataLoader(given.pop("dataset"), given.pop("global_batch"), **given)


@on_layouts("AA")
def test_input_that_no_rank_can_use(rank: int, size: int) -> None:
    for options, kind, said in ALIKE:
        with pytest.raises(kind, match=said):
            make(options)


@on_layouts("AA")
def test_input_that_differs_between_ranks(rank: int, size: int) -> None:
    for *options, said in UNLIKE:
        with pytest.raises(ValueError, match=said):
            make(options[rank])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "VERSION", f"1.{rank}.0")
        with pytest.raises(ValueError, match=r'Atoll differs: "1.0.0" on rank 0; "1.1.0" on rank 1. Give all ranks'):
            make({})


# The settings of rank 0, and those of rank 1.
MAY_DIFFER: dict[str, tuple[Any, Any]] = {
    "optimizer_bytes": (1 << 20, None),
    "watts": ((300.0, 60.0), None),
    "watch": (atoll.training.Watch(live=False), atoll.training.Watch()),
}


def said_to_differ() -> set[str]:
    """Returns the settings whose documentation contains this sentence."""
    (made,) = ast.parse(inspect.getsource(atoll.training.Settings)).body
    assert isinstance(made, ast.ClassDef)
    return {
        ast.unparse(field.target)
        for field, text in itertools.pairwise(made.body)
        if isinstance(field, ast.AnnAssign) and "May differ between ranks" in ast.unparse(text)
    }


@on_layouts("AA")
def test_settings_that_may_differ(rank: int, size: int) -> None:
    assert set(MAY_DIFFER) == said_to_differ()
    for name, values in MAY_DIFFER.items():
        make({"settings": atoll.training.Settings(measure=False, **{name: values[rank]})})


@on_layouts("AA")
def test_input_that_one_rank_cannot_use(rank: int, size: int) -> None:
    for options, said in OF_ONE:
        model = wrapped()  # with a timeout on both, because it waits for the other rank
        with pytest.raises((ValueError, TypeError), match=said if rank == 1 else f"rank 1 has a .*Error: .*{said}"):
            make({"model": model} | (options if rank == 1 else {}))


@on_layouts("AA")
def test_caps_without_weights(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"max_batch makes the shares \[5, 19\] uneven"):
        make({"model": None, "policy": "equal", "max_batch": 5 if rank == 0 else None})
    assert make({"model": None, "policy": "equal", "max_batch": 12}).batch_sizes() == [12, 12]


@on_layouts("AA")
def test_a_last_step_without_weights(rank: int, size: int) -> None:
    """A rank without samples in it would train on one anyway; means are exact."""
    with warnings_of_plans() as said:
        loader = make({"model": None, "policy": "equal", "dataset": dataset(BATCH + 1)})
        found = [(loader.weight, loader.mean(numbers.double().mean()).item()) for _, _, numbers in loader]
    assert any("has 1 samples for 2 ranks" in text and "drop_last=True" in text for text in said) == (rank == 0)
    weights, means = zip(*found, strict=True)
    assert [sum(of_step) for of_step in zip(*on_all_ranks(weights), strict=True)] == [1.0, 1.0]
    assert sorted(on_all_ranks(weights[1])) == [0.0, 1.0]
    order = atoll.plan.permutation(BATCH + 1, 0, 0).double()
    assert means == pytest.approx((order[:BATCH].mean().item(), order[BATCH].item()))


@on_layouts("AA")
def test_scores_of_a_batch_sampler(rank: int, size: int) -> None:
    """One score too many would leave out the samples of its rank."""
    for options, said in (
        ({"scores": [1, 1, 1]}, "3 scores for 2 ranks: give one for each"),
        ({"scores": [1, 1], "rank": 2}, "rank=2, but 2 scores are for ranks 0 to 1"),
        ({"scores": [1, math.nan]}, "rank 1 is nan: give a finite number of at least 0"),
        ({"scores": [0, 0]}, "all weights are 0: give at least one"),
    ):
        with pytest.raises(ValueError, match=said):
            list(atoll.training.BatchSampler(dataset(), BATCH, **options))


@on_layouts("AA")
def test_another_order(rank: int, size: int) -> None:
    order = [(place + rank) % SAMPLES for place in range(SAMPLES)]
    with pytest.raises(ValueError, match=r"order differs: .* All ranks must load the same samples in the same order"):
        next(iter(make({"sampler": order})))


def middle(**options: Any) -> tuple[atoll.DataLoader, dict[str, Any]]:
    """Returns a loader, and its state after two steps of the first epoch."""
    loader = make(options)
    for _ in loader:
        if loader.state_dict()["steps"] == 2:
            break
    return loader, loader.state_dict()


@on_layouts("AA")
def test_states_that_cannot_be_used(rank: int, size: int) -> None:
    loader, state = middle()
    damaged = "it is damaged, use another checkpoint"
    bad: list[tuple[Any, str]] = [
        (None, "a state must be a dictionary from DataLoader.state_dict.., not a NoneType"),
        ([1, 2], "not a list"),
        ({}, "the state has version None, but this Atoll reads version 1: resume with the Atoll that saved it"),
        (state | {"version": 9}, "the state has version 9, but this Atoll reads version 1"),
        (
            state | {"dataset": 99},
            "training run with dataset 99, but this one has 157: give the loader what that run",
        ),
        (state | {"seed": 1}, "a training run with seed 1, but this one has 0"),
        (
            state | {"position": SAMPLES + 1},
            "position is 158, but an epoch has 157 samples: give the loader",
        ),
    ]
    bad += [({key: state[key] for key in state if key != lost}, f"the state lacks {lost}: {damaged}")
            for lost in ("epoch", "position", "steps", "dataset", "seed", "order")]  # fmt: skip
    bad += [(state | {name: value}, f"the state's {name} is {value!r}, not a count: {damaged}")
            for name in ("epoch", "position", "steps") for value in ("3", 2.0, -1, None, True)]  # fmt: skip
    for wrong, said in bad:
        with pytest.raises(ValueError, match=said):
            loader.load_state_dict(wrong)
    assert loader.state_dict() == state, "nothing changes"


@on_layouts("AA")
def test_states_of_another_order(rank: int, size: int) -> None:
    """The samples that are done would not be those before the position."""
    _, state = middle()
    others: list[Options] = [{"shuffle": False}, {"sampler": range(SAMPLES)}, {"weights": [1.0] * SAMPLES}]
    for options in others:
        loader = make(options)
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"its samples in another order: give the loader the same .* or start ano"):
            next(iter(loader))
    loader.set_epoch(1)
    assert len(list(loader)) == len(loader)
    short = make({"sampler": range(30)})
    short.load_state_dict(state)
    with pytest.raises(ValueError, match="position is 48, but an epoch has 30 samples"):
        next(iter(short))


@on_layouts("AA")
def test_a_sampler_that_draws_again_each_time(rank: int, size: int) -> None:
    drawn = RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(3))
    loader, _ = middle(sampler=drawn)
    with pytest.raises(ValueError, match=r"in another order: .* such as RandomSampler with a generator, cannot resume"):
        next(iter(loader))


@on_layouts("AA")
def test_ranks_with_unlike_states(rank: int, size: int) -> None:
    loader, state = middle()
    for name, value in (("position", 24), ("epoch", 1), ("steps", 1)):
        loader.load_state_dict(state | ({name: value} if rank == 1 else {}))
        with pytest.raises(ValueError, match=f"{name} differs: {state[name]} on rank 0; {value} on rank 1. All ranks"):
            next(iter(loader))
    fresh = make({})
    if rank == 0:
        fresh.load_state_dict(state)
    with pytest.raises(ValueError, match="position differs: 48 on rank 0; 0 on rank 1"):
        next(iter(fresh))


@on_layouts("AA")
def test_a_step_begins_anywhere(rank: int, size: int) -> None:
    """A state's position need not be a multiple of the global batch, which may have changed."""
    _, state = middle()
    model = wrapped()
    loader = make({"model": model, "global_batch": 31, "seed": 0})
    loader.load_state_dict(state | {"position": 13})
    done = set(atoll.plan.permutation(SAMPLES, 0, 0)[:13].tolist())
    (rest,) = train(model, loader, 1)
    check_exactly_once([rest + (sorted(done) if rank == 0 else [])])
