# SPDX-License-Identifier: Apache-2.0
"""Old names and places of public names: they stay importable for one release, and name the new ones."""

import re
from importlib import import_module

import pytest

import atoll

NEW = {
    "Saved": "atoll.Checkpointer", "Recovering": "atoll.ElasticTrainer", "Island": "atoll.backend.Island",
    **{name: f"atoll.pipeline.{name}" for name in ("BoundaryCodec", "pack_boundaries")},
    **{name: f"atoll.training.{name}" for name in (
        "BatchSampler", "CompressedGradients", "Settings", "SyncBatchNorm", "Watch", "align_replicas",
        "compress_gradients", "convert_batch_norm", "merge_batch_norm", "replica_difference",
    )},
}  # fmt: skip


@pytest.mark.parametrize("old", NEW)
def test_an_old_name_warns_and_names_the_new_one(old: str) -> None:
    text = f"^{re.escape(f'atoll.{old} is now {NEW[old]}; the old name goes with the next release')}$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        found = getattr(atoll, old)
    module, _, name = NEW[old].rpartition(".")
    assert found is getattr(import_module(module), name)
    assert {warning.filename for warning in warned} == {__file__}
    assert old not in atoll.__all__
    assert old not in dir(atoll)


def test_an_old_name_can_be_imported() -> None:
    with pytest.warns(DeprecationWarning, match="is now atoll.Checkpointer"):
        from atoll import Saved
    assert Saved is atoll.Checkpointer
