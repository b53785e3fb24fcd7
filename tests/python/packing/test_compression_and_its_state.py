# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients in checkpoints, and their errors."""

import io
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from client_ranks import on_layouts
from fixed_gradients import SIZES, contribution, flat, mean_over_ranks, residual_of, take_step, wrapped
from support import raises


@on_layouts("AB", "AABB", "Ab")
def test_a_checkpoint_goes_on_with_the_same_bits(rank: int, size: int) -> None:
    runs = []
    for is_restored in (False, True):
        model = wrapped()
        compressed = atoll.training.compress_gradients(model)
        for step in range(3):
            take_step(model, contribution(step, rank))
        state = compressed.state_dict()
        if is_restored:
            file = io.BytesIO()
            torch.save(state, file)
            compressed.close()
            model = wrapped()
            # As after the first steps of the previous model.
            compressed = atoll.training.compress_gradients(model)
            for step in range(3):
                take_step(model, contribution(step, rank))
            compressed.reset()
            assert residual_of(compressed).eq(0).all()
            file.seek(0)
            compressed.load_state_dict(torch.load(file, weights_only=True))
        runs.append(torch.stack([take_step(model, contribution(step, rank)) for step in range(3, 6)]))
        compressed.close()
    assert torch.equal(runs[0], runs[1])


@on_layouts("AAAB", "ABC")
def test_residuals_of_other_ranks_are_not_lost(rank: int, size: int) -> None:
    """Whichever rank gets a state, it is in the sum of all ranks' gradients."""
    model = wrapped()
    compressed = atoll.training.compress_gradients(model, "fp8_e5m2")
    given, got = torch.zeros(sum(SIZES), dtype=torch.float64), torch.zeros(sum(SIZES), dtype=torch.float64)
    for step in range(4):
        gradients = contribution(step, rank)
        given, got = given + flat(gradients), got + take_step(model, gradients)
        states: list[dict[str, object] | None] = [None] * size
        dist.all_gather_object(states, compressed.state_dict())
        following = states[(rank + 1) % size]
        assert following is not None
        compressed.load_state_dict(following)
    missing = mean_over_ranks(given) - got - residual_of(compressed)
    assert missing.abs().max().item() <= 1e-5 * given.abs().max().item()
    compressed.close()


@on_layouts("AB")
def test_errors_keep_their_type_and_stay(rank: int, size: int) -> None:
    model = wrapped()
    compressed = atoll.training.compress_gradients(model)
    take_step(model, contribution(0, rank))

    def fail(*_: object) -> None:
        raise dist.DistBackendError("the bridge is gone")

    whole = compressed._exchange.mean
    compressed._exchange.mean = fail  # type: ignore[method-assign]
    with raises(dist.DistBackendError, "the bridge is gone"):
        take_step(model, contribution(1, rank))
    compressed._exchange.mean = whole  # type: ignore[method-assign]
    with raises(RuntimeError):
        take_step(model, contribution(2, rank))
    compressed._pending = [compressed._worker.submit(fail)]  # as after a backward pass that was aborted
    with raises(dist.DistBackendError, "the bridge is gone"):
        compressed.close()
    with raises(RuntimeError, "after shutdown"):
        compressed._worker.submit(fail)


@on_layouts("AB")
def test_bad_calls(rank: int, size: int) -> None:
    with raises(TypeError, "got a Linear: pass DistributedDataParallel(net)"):
        atoll.training.compress_gradients(nn.Linear(2, 2))
    with raises(ValueError, "'int4' is not a block format", "choose from int8"):
        atoll.training.compress_gradients(wrapped(), "int4")
    with raises(ValueError, "rank 0 requests", "but rank 1", "pass the same arguments"):
        atoll.training.compress_gradients(wrapped(), ("int8", "fp8_e4m3")[rank])
    with raises(ValueError, "but rank 1"):
        atoll.training.compress_gradients(wrapped(), error_feedback=rank == 0)
    with raises(ValueError, "gloo, not atoll"):
        other = dist.new_group(backend="gloo")
        atoll.training.compress_gradients(DistributedDataParallel(nn.Linear(2, 2), process_group=other))
    model = wrapped()
    compressed = atoll.training.compress_gradients(model)
    with raises(RuntimeError, "register_comm_hook"):
        atoll.training.compress_gradients(model)
    with raises(ValueError, "residuals of parts.0[990:1010], of which the model has 1000"):
        compressed.load_state_dict({"pieces": [{"name": "parts.0", "begin": 990, "values": torch.ones(20)}]})
    with raises(ValueError, "residuals of other[0:1], of which the model has 0"):
        compressed.load_state_dict({"pieces": [{"name": "other", "begin": 0, "values": torch.ones(1)}]})


@on_layouts("AA")
def test_one_island_is_warned_of_once(rank: int, size: int) -> None:
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    keep = Keep(logging.WARNING)
    logging.getLogger("atoll.packing").addHandler(keep)
    atoll.training.compress_gradients(wrapped()).close()
    logging.getLogger("atoll.packing").removeHandler(keep)
    assert len(said) == (1 if rank == 0 else 0)
    assert all("compress_inside=True" in text for text in said)
