# SPDX-License-Identifier: Apache-2.0
"""torch.compile with models that DDP and FSDP2 wrap."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from client_ranks import ON_DEVICES, on_layouts
from support import device
from training import check_close, check_equal_bits, network, train_alone, train_together

STEPS = 3


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


@on_layouts("ABA", *ON_DEVICES)
def test_compiled_ddp(rank: int, size: int) -> None:
    alone = network()
    train_alone(alone, size, STEPS)
    together = DistributedDataParallel(network(place=device()))
    train_together(compiled(together), rank, STEPS)
    check_equal_bits(together.module)
    check_close(together.module, alone, 1e-12)


@on_layouts("ABA", *ON_DEVICES)
def test_compiled_fsdp(rank: int, size: int) -> None:
    alone = network()
    train_alone(alone, size, STEPS)
    together = fully_shard(network(place=device()), mesh=init_device_mesh(device(), (size,)))
    train_together(compiled(together), rank, STEPS)
    for name, parameter in together.named_parameters():
        whole = parameter.full_tensor().cpu()
        torch.testing.assert_close(whole, dict(alone.named_parameters())[name], rtol=1e-12, atol=1e-12)
