# SPDX-License-Identifier: Apache-2.0
"""Whole operations that are left to a device's library, which behaves as NCCL does: a rank that never calls is an
error on the others in time."""

from pathlib import Path

import pytest

from fault_jobs import Job, Me

SIM = {"ATOLL_DEVICE": "sim"}
LIMIT_S = 1.0
# A failed operation blocks its stream for five seconds: afterwards it is too late, values have been used.
PROMPT_S = LIMIT_S + 3.0


def call_alone(me: Me, has_called: bool) -> None:
    me.join(seconds=60)
    if has_called:
        me.check_sum()
    me.limit(LIMIT_S, "sim")
    me.run_together()
    if me.rank == 1:
        me.listen()
    me.check_sum()


@pytest.mark.parametrize("has_called", [True, False])
def test_a_rank_that_never_makes_a_synchronous_call(tmp_path: Path, has_called: bool) -> None:
    """Before the first call of all, the library has been connected, which it would otherwise do in that call."""
    with Job(tmp_path, call_alone, "AA", (has_called,), SIM) as job:
        at = max(event.at for event in job.wait_for("running").values())
        (failure,) = job.failures([0], at, PROMPT_S).values()
        assert "timed out" in failure.text, failure.text
