# SPDX-License-Identifier: Apache-2.0
"""Atoll provides what older releases of PyTorch lack."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from atoll._newer_torch import grace_seconds, group_in_order


def test_the_grace_of_ranks_is_the_command_lines_or_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    assert grace_seconds(SimpleNamespace(shutdown_timeout=7)) == 7
    assert grace_seconds(SimpleNamespace(shutdown_timeout=0)) == 0
    assert grace_seconds(SimpleNamespace()) == 30
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
    assert grace_seconds(SimpleNamespace()) == 3


def test_ranks_keep_their_order_where_pytorch_sorts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def sorts(ranks: list[int]) -> list[int]:
        return sorted(ranks)

    monkeypatch.setattr(dist, "new_group", sorts)
    for wanted in ([2, 0, 1], [1, 0], [0, 1, 2], [3]):
        found: Any = group_in_order(wanted)
        assert found == wanted
        assert [found.index(rank) for rank in wanted] == list(range(len(wanted)))


def test_pytorch_decides_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(ranks: list[int], sort_ranks: bool = True) -> tuple[list[int], bool]:
        return ranks, sort_ranks

    monkeypatch.setattr(dist, "new_group", takes)
    assert group_in_order([1, 0]) == ([1, 0], False)
    assert group_in_order([0, 1]) == ([0, 1], True)
