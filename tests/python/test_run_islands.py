# SPDX-License-Identifier: Apache-2.0
"""--island strings: their meaning, and the error of each wrong one."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.launch import LaunchError
from atoll.launch.islands import Island, devices_of, parse_island, place


def placed(*texts: str, local_ranks: int | None = None) -> list[Island]:
    return place([parse_island(text) for text in texts], local_ranks)


def ranks_of(*texts: str, local_ranks: int | None = None) -> dict[str, tuple[int, ...]]:
    return {island.name: island.ranks for island in placed(*texts, local_ranks=local_ranks)}


def test_options() -> None:
    text = "amd/0:2,device=rocm:1,python=~/v/bin/python,container=host:5000/image:tag@sha256,env=A=1,env=B=x=y,env=C="
    assert parse_island(text) == Island(
        "amd/0", (), 2, "rocm:1", "~/v/bin/python", "host:5000/image:tag@sha256", {"A": "1", "B": "x=y", "C": ""}
    )


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=4))
def test_commas_in_values_are_written_twice(values: list[str]) -> None:
    text = "a:1" + "".join(f",env=V{number}={value.replace(',', ',,')}" for number, value in enumerate(values))
    assert parse_island(text).environment == {f"V{number}": value for number, value in enumerate(values)}


def test_counts_take_the_next_ranks() -> None:
    assert ranks_of("fast:2", "slow:1") == {"fast": (0, 1), "slow": (2,)}


def test_counts_take_the_ranks_that_no_island_names() -> None:
    assert ranks_of("a:2", "b:0-0+2", "c:1") == {"a": (1, 3), "b": (0, 2), "c": (4,)}


def test_agreeing_number() -> None:
    assert ranks_of("a:0-1+4", "b:2-3", local_ranks=5) == {"a": (0, 1, 4), "b": (2, 3)}


# Proves S-5.
@given(st.permutations(range(9)), st.lists(st.integers(1, 8), max_size=4), st.data())
def test_every_rank_is_in_one_island(order: list[int], cuts: list[int], data: st.DataObject) -> None:
    """Any partition, with each part written as a count or as ranks."""
    borders = [0, *sorted(set(cuts)), len(order)]
    parts = [order[low:high] for low, high in pairwise(borders)]
    texts = []
    for number, part in enumerate(parts):
        explicit = data.draw(st.booleans())
        ranks = "+".join(f"{rank}-{rank}" for rank in part)
        texts.append(f"i{number}:{ranks if explicit else len(part)}")
    found = ranks_of(*texts, local_ranks=len(order))
    assert sorted(rank for ranks in found.values() for rank in ranks) == list(range(len(order)))
    for number, (text, part) in enumerate(zip(texts, parts, strict=True)):
        assert len(found[f"i{number}"]) == len(part)
        if "-" in text:
            assert found[f"i{number}"] == tuple(sorted(part))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        island = parse_island(text)
    except LaunchError as error:
        assert str(error).startswith(f"--island {text!r}: ")
    else:
        assert island.name
        assert island.ranks or island.count


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fast", "the ranks are missing: write NAME:RANKS, such as fast:2 or fast:0-1+4"),
        ("fast:", "the ranks are missing: write NAME:RANKS"),
        (":2", "invalid name '': use 1 to 64 letters, digits and characters of \"._@/-\""),
        ("a b:2", "invalid name 'a b': use"),
        (f"{'x' * 65}:2", ": use 1 to 64"),
        ("a:x", "invalid ranks 'x': write how many, such as 2, or which, such as 0-1+4"),
        ("a:1-", "invalid ranks '1-'"),
        ("a:-1", "invalid ranks '-1'"),
        ("a:\u0661", "invalid ranks"),
        ("a:0", "0 ranks: an island has 1 to 4096; for local rank 0 only, write 0-0"),
        ("a:5000", "5000 ranks: an island has 1 to 4096"),
        ("a:0-5000", "local rank 5000 is too large: a host has at most 4096"),
        ("a:3-1", "the range 3-1 is reversed: write 1-3"),
        ("a:0-2+1", "local rank 1 is named twice: name it once"),
        ("a:1,devise=cpu", "unknown option 'devise=cpu': options are device=DEVICE, python=PATH, env=NAME=VALUE and"),
        ("a:1,cpu", "unknown option 'cpu'"),
        ("a:1,", "unknown option ''"),
        ("a:1,env=L=1,2", "unknown option '2': options are device=DEVICE, python=PATH, env=NAME=VALUE and "
         "container=IMAGE; double a comma inside a value"),
        ("a:1,device=", "device= has no value: add one, or remove device="),
        ("a:1,device=CUDA", "invalid device 'CUDA': write a type, such as cuda or cpu, or one device, such as cuda:3"),
        ("a:1,device=cuda:x", "invalid device 'cuda:x'"),
        ("a:1,python=a,python=b", "python= is given twice, as 'a' and 'b': remove one"),
        ("a:1,env=A", "env=A sets no variable: write env=NAME=VALUE"),
        ("a:1,env=1A=2", "env=1A=2 sets no variable"),
        ("a:1,env=A=1,env=A=2", "env=A= is given twice, as '1' and '2': remove one"),
        ("a:1,env=ATOLL_ISLAND=b", "env=ATOLL_ISLAND=b: the island's name is 'a': change it there"),
        ("a:1,env=ATOLL_DEVICE=cpu", "env=ATOLL_DEVICE=cpu: use device=cpu instead"),
        ("a:1,env=LOCAL_RANK=0", "env=LOCAL_RANK=0: LOCAL_RANK is set by the launcher for each rank: remove it"),
        ("a:1,env=MASTER_PORT=1", "MASTER_PORT is set by the launcher"),
    ],
)  # fmt: skip
def test_malformed_island(text: str, problem: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(problem)) as caught:
        parse_island(text)
    assert str(caught.value).startswith(f"--island {text!r}: ")


@pytest.mark.parametrize(
    ("texts", "local_ranks", "problem"),
    [
        (["a:1", "a:1"], None, "island 'a' is given 2 times: combine its ranks, such as a:0-1+4"),
        (["a:0-1", "b:1-2"], None, "local rank 1 is in island 'a' and in 'b': remove it from one"),
        (["a:0-0", "b:2-2"], None, "local rank 1 is in no island: add it to one, or number the ranks without gaps"),
        (["a:2", "b:1"], 4, "--nproc-per-node is 4, but the islands have 3 ranks (a: 2, b: 1): write "
         "--nproc-per-node=3, or remove it"),
    ],
)  # fmt: skip
def test_islands_that_do_not_fit(texts: list[str], local_ranks: int | None, problem: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(problem)):
        placed(*texts, local_ranks=local_ranks)


@pytest.mark.parametrize(
    ("texts", "devices"),
    [
        (["a:2", "b:1"], {}),
        (["a:2,device=cuda", "b:1,device=cpu"], {0: "cuda:0", 1: "cuda:1", 2: "cpu"}),
        (["a:0-0+2,device=sim", "b:1-1,device=sim"], {0: "sim:0", 1: "sim:1", 2: "sim:2"}),
        (["a:2,device=cuda", "b:1,device=cuda:0"], {0: "cuda:1", 1: "cuda:2", 2: "cuda:0"}),
        (["a:2,device=cuda:3", "b:1,device=cuda"], {0: "cuda:3", 1: "cuda:3", 2: "cuda:0"}),
        # Each vendor's processes count their own devices from 0, and PyTorch calls both kinds "cuda".
        (["a:1,device=cuda", "b:2,device=rocm"], {0: "cuda:0", 1: "cuda:0", 2: "cuda:1"}),
    ],
)
def test_devices(texts: list[str], devices: dict[int, str]) -> None:
    assert devices_of(placed(*texts)) == devices
