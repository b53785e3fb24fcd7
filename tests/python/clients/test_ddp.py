# SPDX-License-Identifier: Apache-2.0
"""Stock DistributedDataParallel gives the training of one process with all samples."""

import copy
import io

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from client_ranks import EVERYWHERE, ON_DEVICES, on_layouts
from support import device
from training import check_close, check_equal_bits, network, optimizer, share, train_alone, train_together

STEPS = 8
EXACT = 1e-12
SMALL_BUCKETS_MB = 0.001


def train_copy(rank: int, place: str, **options: object) -> nn.Module:
    model = DistributedDataParallel(network(place=place), **options)  # type: ignore[arg-type]
    train_together(model, rank, STEPS)
    return model.module


def check_training(rank: int, size: int, **options: object) -> None:
    alone = network()
    train_alone(alone, size, STEPS)
    together = train_copy(rank, device(), **options)
    check_equal_bits(together)
    check_close(together, alone, EXACT)


@on_layouts(*ON_DEVICES)
def test_the_bits_of_cpus(rank: int, size: int) -> None:
    """Devices and their libraries change no bit: the same job on CPUs, with the same islands, gives the same result."""
    check_close(train_copy(rank, device()), train_copy(rank, "cpu"), 0)


@on_layouts(*EVERYWHERE)
def test_plain(rank: int, size: int) -> None:
    check_training(rank, size)


@on_layouts(*EVERYWHERE, "AABB")
def test_many_buckets(rank: int, size: int) -> None:
    check_training(rank, size, bucket_cap_mb=SMALL_BUCKETS_MB)


@on_layouts(*EVERYWHERE)
def test_static_graph(rank: int, size: int) -> None:
    check_training(rank, size, static_graph=True, bucket_cap_mb=SMALL_BUCKETS_MB)


@on_layouts(*EVERYWHERE)
def test_gradients_as_bucket_views(rank: int, size: int) -> None:
    check_training(rank, size, gradient_as_bucket_view=True, bucket_cap_mb=SMALL_BUCKETS_MB)


class Branches(nn.Module):
    """One branch is never used and one only by even ranks, so some gradients are missing on some ranks or on all."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = network()
        self.even = nn.Linear(5, 5).double()
        self.never = nn.Linear(5, 5).double()

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        outputs = self.trunk(inputs)
        return self.even(outputs) if rank % 2 == 0 else outputs


def branch_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, rank: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs, rank), targets)


@on_layouts(*EVERYWHERE)
def test_unused_parameters(rank: int, size: int) -> None:
    alone = Branches()
    train_alone(alone, size, STEPS, branch_loss)
    together = DistributedDataParallel(
        Branches().to(device()), find_unused_parameters=True, bucket_cap_mb=SMALL_BUCKETS_MB
    )
    train_together(together, rank, STEPS, branch_loss)
    check_equal_bits(together.module)
    check_close(together.module, alone, EXACT)
    assert together.module.never.weight.grad is None


@on_layouts(*EVERYWHERE)
def test_accumulation_without_synchronisation(rank: int, size: int) -> None:
    alone, together = network(), DistributedDataParallel(network(place=device()))
    update_alone, update_together = optimizer(alone.parameters()), optimizer(together.parameters())
    for step in range(STEPS):
        parts = [2 * step, 2 * step + 1]
        update_alone.zero_grad()
        for part in parts:
            for other in range(size):
                inputs, targets = share(part, other)
                (nn.functional.cross_entropy(alone(inputs), targets) / size).backward()
        update_alone.step()
        update_together.zero_grad()
        with together.no_sync():
            inputs, targets = share(parts[0], rank, place=device())
            nn.functional.cross_entropy(together(inputs), targets).backward()
        inputs, targets = share(parts[1], rank, place=device())
        nn.functional.cross_entropy(together(inputs), targets).backward()
        update_together.step()
    check_equal_bits(together.module)
    check_close(together.module, alone, EXACT)


def bfloat16_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    # DDP refuses the hook under its own name where there is no GPU.
    return default_hooks.bf16_compress_hook(group, bucket)


@on_layouts(*EVERYWHERE)
def test_bfloat16_compression(rank: int, size: int) -> None:
    alone = network(torch.float32)
    losses = [
        nn.functional.cross_entropy(alone(inputs), targets) / size
        for inputs, targets in (share(0, other, torch.float32) for other in range(size))
    ]
    torch.stack(losses).sum().backward()
    together = DistributedDataParallel(network(torch.float32, device()), bucket_cap_mb=SMALL_BUCKETS_MB)
    together.register_comm_hook(dist.group.WORLD, bfloat16_hook)
    inputs, targets = share(0, rank, torch.float32, device())
    nn.functional.cross_entropy(together(inputs), targets).backward()
    for mine, expected in zip(together.parameters(), alone.parameters(), strict=True):
        # One rounding for each contribution, one for each partial sum.
        scale = expected.grad.abs().max().item()
        assert (mine.grad.cpu() - expected.grad).abs().max().item() <= 2 * size * 2**-9 * scale * size
        assert torch.equal(mine.grad.bfloat16().float(), mine.grad)
    optimizer(together.parameters()).step()
    check_equal_bits(together.module)


@on_layouts(*EVERYWHERE)
def test_power_sgd(rank: int, size: int) -> None:
    trained = []
    for group, place in ((dist.group.WORLD, device()), (dist.new_group(backend="gloo"), "cpu")):
        torch.manual_seed(3)
        model = DistributedDataParallel(network(torch.float32, place), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train_together(model, rank, STEPS)
        trained.append(model.module)
    check_equal_bits(trained[0])
    check_close(trained[0], trained[1], 1e-4)


@on_layouts("A")
def test_models_with_a_hook_are_copied_and_saved(rank: int, size: int) -> None:
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, debugging_hooks.noop_hook)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        check_close(twin.module, model.module, 0.0)
        twin.register_comm_hook(None, debugging_hooks.noop_hook)  # a copy has no hook yet


@on_layouts(*EVERYWHERE)
def test_uneven_numbers_of_batches(rank: int, size: int) -> None:
    model = DistributedDataParallel(network(place=device()))
    update = optimizer(model.parameters())
    with model.join():
        for step in range(2 + rank):
            update.zero_grad()
            inputs, targets = share(step, rank, place=device())
            nn.functional.cross_entropy(model(inputs), targets).backward()
            update.step()
    check_equal_bits(model.module)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs)


@on_layouts(*EVERYWHERE)
def test_buffers_and_parameters_come_from_the_first_rank(rank: int, size: int) -> None:
    module = Counter().to(device())
    with torch.no_grad():
        module.linear.weight.fill_(rank + 1)
    model = DistributedDataParallel(module)
    module.count.fill_(10 + rank)
    model(torch.ones(1, 2, device=device()))
    assert module.count.item() == 10
    assert module.linear.weight.eq(1).all()
