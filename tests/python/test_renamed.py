# SPDX-License-Identifier: Apache-2.0
"""Old names of public classes: they stay importable for one release, and name the new ones."""

import pytest

import atoll


@pytest.mark.parametrize(("old", "new"), [("Saved", "Checkpointer"), ("Recovering", "ElasticTrainer")])
def test_an_old_name_warns_and_names_the_new_one(old: str, new: str) -> None:
    text = rf"^atoll\.{old} is now atoll\.{new}; the old name goes with the next release$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        found = getattr(atoll, old)
    assert found is getattr(atoll, new)
    assert {warning.filename for warning in warned} == {__file__}
    assert old not in atoll.__all__
    assert old not in dir(atoll)


def test_an_old_name_can_be_imported() -> None:
    with pytest.warns(DeprecationWarning, match="is now atoll.Checkpointer"):
        from atoll import Saved
    assert Saved is atoll.Checkpointer
