# SPDX-License-Identifier: Apache-2.0
"""Gradients as packed blocks: the same bits on all ranks, nothing lost for good, half of bfloat16's bytes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.packing.blocks import FORMATS
from atoll.packing.exchange import Exchange
from client_ranks import on_layouts
from fixed_gradients import (
    LAYOUTS,
    SIZES,
    check_equal_everywhere,
    contribution,
    flat,
    mean_over_ranks,
    residual_of,
    take_step,
    wrapped,
)
from support import device, later
from training import check_close, check_equal_bits, network, train_alone, train_together

STEPS = 12
MAX_LOST = {"int8": 1 / 127, "fp8_e4m3": 1 / 16, "fp8_e5m2": 1 / 8}  # of a block's largest magnitude, by one packing


@on_layouts(*LAYOUTS)
def test_equal_bits_and_nothing_lost_for_good(rank: int, size: int) -> None:
    """Over all steps the results and the residuals add up to the gradients, also after buckets were rebuilt."""
    for format in FORMATS:
        model = wrapped()
        compressed = atoll.training.compress_gradients(model, format)
        assert compressed.is_lossy
        given, got = torch.zeros(sum(SIZES), dtype=torch.float64), torch.zeros(sum(SIZES), dtype=torch.float64)
        largest = 0.0
        for step in range(STEPS):
            gradients = contribution(step, rank)
            found = take_step(model, gradients)
            check_equal_everywhere(found)
            given, got = given + flat(gradients), got + found
            largest = max(largest, flat(gradients).abs().max().item())
        residual = residual_of(compressed)
        mean = mean_over_ranks(given)
        assert (mean - got - residual).abs().max().item() <= 1e-5 * largest
        # The residual is what a few packings lose, however many steps there were.
        everywhere = torch.tensor([largest])
        dist.all_reduce(everywhere, dist.ReduceOp.MAX)
        assert 0 < residual.abs().max().item() <= 4 * MAX_LOST[format] * size * everywhere.item()
        compressed.close()


@on_layouts("AB", later("AABB"), "Ab")
def test_small_gradients_arrive_in_time(rank: int, size: int) -> None:
    """Next to a large one in their block they would be rounded to zero in every step; error feedback prevents that."""
    gradients = [torch.full((64,), 0.25)]
    gradients[0][::32] = 1000.0
    for feeds_back in (True, False):
        model = wrapped([64])
        compressed = atoll.training.compress_gradients(model, "int8", error_feedback=feeds_back)
        total = sum(take_step(model, gradients) for _ in range(200))
        assert isinstance(total, torch.Tensor)
        small = total[1]
        assert (abs(small.item() - 200 * 0.25) <= 16) if feeds_back else (small.item() == 0)
        assert feeds_back or compressed.state_dict()["pieces"] == []
        compressed.close()


@on_layouts(*LAYOUTS)
def test_each_step_is_near_the_mean(rank: int, size: int) -> None:
    for format in FORMATS:
        model = wrapped()
        compressed = atoll.training.compress_gradients(model, format, error_feedback=False)
        gradients = contribution(0, rank)
        mean = mean_over_ranks(flat(gradients))
        bound = torch.tensor([flat(gradients).abs().max().item()])
        dist.all_reduce(bound)
        error = (take_step(model, gradients) - mean).abs().max().item()
        assert error <= 2 * MAX_LOST[format] * bound.item()
        compressed.close()


@on_layouts("AB", later("AABB"), later("ABA"), later("AAAB"), later("ABC"), later("Ab"), "abaC")
def test_the_same_run_has_the_same_bits(rank: int, size: int) -> None:
    runs = []
    for _ in range(2):
        model = wrapped()
        compressed = atoll.training.compress_gradients(model, "fp8_e4m3")
        runs.append(torch.stack([take_step(model, contribution(step, rank)) for step in range(4)]))
        compressed.close()
    assert torch.equal(runs[0], runs[1])


@on_layouts("AB", "AABB", "ABC", "ABA")
def test_bytes_on_the_bridge(rank: int, size: int) -> None:
    """Groups count at most 0.55 of bfloat16's bytes for one gradient of a million elements."""
    count = 1 << 20
    model = DistributedDataParallel(nn.Linear(1024, count // 1024, bias=False), bucket_cap_mb=100)
    compressed = atoll.training.compress_gradients(model)
    inputs = torch.ones(1, 1024)
    model(inputs).sum().backward()
    before = compressed.time_split()["bytes_bridge"]
    model(inputs).sum().backward()
    packed = compressed.time_split()["bytes_bridge"] - before
    plain = dist.new_group()
    dist.all_reduce(torch.ones(count, dtype=torch.bfloat16), group=plain)
    sent = torch.tensor([packed, atoll.time_split(plain)["bytes_bridge"]], dtype=torch.float64)
    dist.all_reduce(sent)
    assert 0 < sent[0] <= 0.52 * sent[1]
    dist.destroy_process_group(plain)
    compressed.close()


@on_layouts("AA", "AAA")
def test_one_island_stays_exact(rank: int, size: int) -> None:
    for compress_inside in (False, True):
        model = wrapped()
        compressed = atoll.training.compress_gradients(model, compress_inside=compress_inside)
        assert compressed.is_lossy == compress_inside
        gradients = contribution(0, rank)
        error = (take_step(model, gradients) - mean_over_ranks(flat(gradients))).abs().max().item()
        assert (error > 1e-5 * flat(gradients).abs().max().item()) == compress_inside
        check_equal_everywhere(take_step(model, gradients))
        compressed.close()


@on_layouts("AB", "AAAB", "ab")
def test_what_is_not_finite_reaches_all_and_passes(rank: int, size: int) -> None:
    for bad in (float("nan"), float("inf")):
        for place in (0, 500, 3000):
            model = wrapped()
            compressed = atoll.training.compress_gradients(model)
            take_step(model, contribution(0, rank))
            gradients = contribution(1, rank)
            if rank == size - 1:
                flat_place = place
                for part in gradients:
                    if flat_place < part.numel():
                        part[flat_place] = bad
                        break
                    flat_place -= part.numel()
            found = take_step(model, gradients)
            check_equal_everywhere(found)
            assert found[place].isnan()
            assert found.isfinite().sum() > 0
            assert take_step(model, contribution(2, rank)).isfinite().all()
            compressed.close()


@on_layouts("AB", later("AABB"), "ABA", later("AAAB"), later("ABC"), later("Ab"), "abaC")
def test_training_goes_as_without(rank: int, size: int) -> None:
    alone = network(torch.float32)
    train_alone(alone, size, 40)
    for format, far in (("int8", 0.02), ("fp8_e4m3", 0.05), ("fp8_e5m2", 0.1)):
        model = DistributedDataParallel(network(torch.float32, device()), bucket_cap_mb=0.001)
        compressed = atoll.training.compress_gradients(model, format)
        train_together(model, rank, 40)
        check_equal_bits(model.module)
        check_close(model.module, alone, far)
        compressed.close()


@on_layouts("AB", "ab", "Ab")
def test_other_types_of_gradients(rank: int, size: int) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = wrapped([100, 33], dtype)
        compressed = atoll.training.compress_gradients(model)
        gradients = [each.to(dtype) for each in contribution(0, rank, [100, 33])]
        mean = mean_over_ranks(flat(gradients))
        bound = torch.tensor([flat(gradients).abs().max().item()])
        dist.all_reduce(bound)
        found = take_step(model, gradients)
        check_equal_everywhere(found)
        assert (found - mean).abs().max().item() <= 2 * bound.item() / 127
        compressed.close()


@on_layouts("AB")
def test_complex_gradients(rank: int, size: int) -> None:
    model = DistributedDataParallel(nn.Linear(20, 3, dtype=torch.complex64))
    compressed = atoll.training.compress_gradients(model)
    for step in range(3):
        model.zero_grad()
        inputs = torch.randn(5, 20, dtype=torch.complex64, generator=torch.Generator().manual_seed(10 * step + rank))
        model(inputs).abs().square().mean().backward()
        assert model.module.weight.grad is not None
        check_equal_everywhere(torch.view_as_real(model.module.weight.grad))
        assert model.module.weight.grad.abs().max() > 0
    assert {piece["name"] for piece in compressed.state_dict()["pieces"]} == {"weight", "bias"}
    compressed.close()


@on_layouts("AB", "ABA")
def test_uneven_numbers_of_batches(rank: int, size: int) -> None:
    model = DistributedDataParallel(network(torch.float32))
    compressed = atoll.training.compress_gradients(model)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(2 + rank):
            update.zero_grad()
            model(torch.ones(3, 12)).square().mean().backward()
            update.step()
    check_equal_bits(model.module)
    compressed.close()


@on_layouts("AB", "AAB", "Ab")
def test_a_bucket_without_elements(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    exchange = Exchange(group, "int8", compress_inside=False, number=1 << 20)
    nothing, something = torch.zeros(0, device=device()), torch.full((5,), float(rank), device=device())
    assert exchange.is_lossy
    exchange.mean(nothing, None)
    if (led := exchange.led(0)) is not None:
        assert len(led) == 0
    exchange.mean(something, None)  # the ranks go on together
    expected = torch.full((5,), (size - 1) / 2)
    torch.testing.assert_close(something.cpu(), expected, rtol=0.02, atol=0)
    exchange.close()
