# SPDX-License-Identifier: Apache-2.0
"""torch.amp.GradScaler with uneven shares: all ranks skip the same steps as one process, and learn the same."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.batch_part import Part
from atoll.weighting.weights import Weights, weights_of
from client_ranks import on_layouts
from support import device, later
from training import check_close, check_equal_bits, network
from uneven_training import BATCH, Shares, batch, mean_loss, random_shares, sgd

STEPS, EXACT = 30, 1e-12
BROKEN = {4: 0, 5: 11, 17: BATCH - 1}  # step: the infinite sample; empty ranks compute the first one, too
LAYOUTS = (later("AAA"), later("ab"), "aCb")


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = batch(step)
    if step in BROKEN:
        inputs[BROKEN[step]] = float("inf")
    return inputs, targets


def train(
    model: nn.Module, weights: Weights | None, rank: int, shares: list[Shares], half: bool = False
) -> list[float]:
    """Trains; returns the scales after each step. `half`: in float16, as with autocast."""
    where = next(model.parameters())
    update = sgd(model.parameters())
    scaler = torch.amp.GradScaler(where.device.type, init_scale=2.0**6, growth_interval=5)
    scales = []
    for step, by_rank in enumerate(shares):
        update.zero_grad()
        begin = sum(map(sum, by_rank[:rank]))
        for index, size in enumerate(by_rank[rank]):
            inputs, targets = data(step)
            rows = slice(begin, begin + size) if size else slice(0, 1)
            begin += size
            if weights is not None:
                weights.begin(Part(size, lambda: BATCH, index == 0, index == len(by_rank[rank]) - 1))
            with torch.autocast(where.device.type, torch.float16, enabled=half):
                loss = mean_loss(model, inputs[rows].to(where), targets[rows].to(where.device))
            scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def alone(dtype: torch.dtype = torch.float64, half: bool = False) -> tuple[nn.Module, list[float]]:
    model = network(dtype)
    scales = train(model, None, 0, [[[BATCH]]] * STEPS, half)
    skipped = [step for step in range(1, STEPS) if scales[step] < scales[step - 1]]
    assert skipped == list(BROKEN), "the reference itself skips the broken steps"
    return model, scales


@on_layouts(*LAYOUTS)
def test_ddp(rank: int, size: int) -> None:
    """Trains with empty ranks, and with parts that accumulate."""
    reference, scales = alone()
    for most_parts in (1, 4):
        shares = random_shares(size, STEPS, most_parts=most_parts)
        shares[5] = [[0] * len(parts) for parts in shares[5]]
        shares[5][-1][-1] = BATCH  # all other ranks are empty
        model = DistributedDataParallel(network(place=device()), bucket_cap_mb=0.001)
        assert train(model, weights_of(model), rank, shares) == scales
        check_equal_bits(model)
        check_close(model.module, reference, EXACT)


@on_layouts(later("AAA"), "ab")
def test_half_precision(rank: int, size: int) -> None:
    """Ranks round different sums than one process, but with no larger error."""
    reference, scales = alone(torch.float32, half=True)
    model = DistributedDataParallel(network(torch.float32, device()))
    assert train(model, weights_of(model), rank, random_shares(size, STEPS, most_parts=2), half=True) == scales
    check_equal_bits(model)
    check_close(model.module, reference, 2e-3)


@on_layouts(*LAYOUTS)
def test_fsdp(rank: int, size: int) -> None:
    """Each rank sees only its own shard, and all skip a step that one of them must skip."""
    reference, scales = alone()
    model = network(place=device())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    shares = random_shares(size, STEPS, most_parts=3, alike=True)
    assert train(model, weights_of(model), rank, shares) == scales
    gathered = network()
    gathered.load_state_dict({name: value.full_tensor().cpu() for name, value in model.state_dict().items()})
    check_close(gathered, reference, EXACT)
