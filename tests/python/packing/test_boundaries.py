# SPDX-License-Identifier: Apache-2.0
"""Boundaries of pipelines as packed blocks, under torch.distributed.pipelining's own schedules."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from atoll.packing.blocks import FORMATS
from atoll.packing.boundary import BoundaryCodec, pack_boundaries
from client_ranks import on_layouts
from support import device

WIDTH, SAMPLES, LENGTH, MICROBATCHES, STEPS = 48, 12, 5, 6, 3
MAX_LOST = {"int8": 1 / 127, "fp8_e4m3": 1 / 16, "fp8_e5m2": 1 / 8}
LAYOUTS = ("AB", "ABA", "ab", "Ab")


class Copied(torch.autograd.Function):
    """Does to values and gradients what a boundary does, in one process."""

    @staticmethod
    def forward(ctx: object, values: torch.Tensor, codec: BoundaryCodec) -> torch.Tensor:
        ctx.codec = codec  # type: ignore[attr-defined]
        return codec.unpacked(codec.packed(values))

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        codec = ctx.codec  # type: ignore[attr-defined]
        return codec.unpacked(codec.packed(gradients[0])), None


def blocks(count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(6)
    inputs, targets = torch.randn(2, SAMPLES, LENGTH, WIDTH, generator=chance)
    return inputs, targets


def alone(count: int, codec: BoundaryCodec | None) -> tuple[list[nn.Module], list[torch.Tensor]]:
    """Returns modules with their gradients, and the losses of the micro-batches."""
    modules = blocks(count)
    inputs, targets = batch()
    losses = []
    for part, target in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
        values = part
        for index, module in enumerate(modules):
            values = module(values)
            if codec is not None and index < count - 1:
                values = Copied.apply(values, codec)  # type: ignore[no-untyped-call]
        loss = nn.functional.mse_loss(values, target)
        loss.backward()  # what crosses boundaries is not yet divided by the number of micro-batches
        losses.append(loss.detach())
    for module in modules:
        for parameter in module.parameters():
            parameter.grad /= MICROBATCHES
    return modules, losses


def check_pipeline(kind: type, rank: int, size: int, format: str, per_rank: int = 1) -> None:
    count = size * per_rank
    codec = BoundaryCodec(format, WIDTH)
    modules = {index: blocks(count)[index].to(device()) for index in range(rank, count, size)}
    stages = []
    for index, module in modules.items():
        pack_boundaries(module, codec if index > 0 else None, codec if index < count - 1 else None)
        stages.append(PipelineStage(module, index, count, torch.device(device()), group=dist.group.WORLD))
    schedule = kind(stages if per_rank > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=nn.MSELoss())
    expected, expected_losses = alone(count, codec)
    exact, _ = alone(count, None)
    for _ in range(STEPS):
        for module in modules.values():
            module.zero_grad()
        inputs, targets = (part.to(device()) for part in batch())
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if rank == 0 else ()
        schedule.step(*arguments, **({"target": targets, "losses": losses} if rank == size - 1 else {}))
        if losses:
            torch.testing.assert_close(torch.stack(losses).cpu(), torch.stack(expected_losses))
        for index, module in modules.items():
            names = [name for name, _ in module.named_parameters()]
            assert names == [name for name, _ in exact[index].named_parameters()]
            of = zip(module.parameters(), expected[index].parameters(), exact[index].parameters(), strict=True)
            for mine, theirs, true in of:
                torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
                far = (theirs.grad - true.grad).abs().max().item()
                assert 0 < far <= 4 * count * MAX_LOST[format] * true.grad.abs().max().item() or index == count - 1


@on_layouts(*LAYOUTS)
def test_one_forward_one_backward(rank: int, size: int) -> None:
    for format in FORMATS:
        check_pipeline(Schedule1F1B, rank, size, format)


@on_layouts("AB", "ab")
def test_all_forward_all_backward(rank: int, size: int) -> None:
    check_pipeline(ScheduleGPipe, rank, size, "int8")


@on_layouts("AB", "ab")
def test_interleaved_stages(rank: int, size: int) -> None:
    check_pipeline(ScheduleInterleaved1F1B, rank, size, "fp8_e4m3", per_rank=2)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_values_and_gradients_are_packed_alike(format: str, dtype: torch.dtype) -> None:
    for shape in ((3, 4, 64), (5, 33), (7,), (0, 32), (2, 3, 1, 100)):
        codec = BoundaryCodec(format, shape[-1], dtype)
        torch.manual_seed(3)
        values, gradient = torch.randn(2, *shape).to(dtype)
        values.requires_grad_()
        carrier = codec.encode(values)
        assert carrier.shape == (*shape[:-1], codec.carrier_width)
        assert carrier.numel() * carrier.element_size() == values[..., 0].numel() * codec.bytes_per_row
        decoded = codec.decode(carrier)
        assert decoded.dtype == dtype
        decoded.backward(gradient)
        assert values.grad is not None
        for found, true in ((decoded, values), (values.grad, gradient)):
            bound = MAX_LOST[format] * true.abs().amax(-1, keepdim=True) if true.numel() else true
            assert (found - true).abs().le(bound).all()
            assert torch.equal(found, codec.unpacked(codec.packed(true)))


def test_bytes_are_half_of_bfloat16() -> None:
    for width in (64, 256, 768, 4096):
        assert BoundaryCodec("int8", width).bytes_per_row <= 0.52 * 2 * width


def test_shapes_are_known_without_values() -> None:
    codec = BoundaryCodec("int8", 100)
    carrier = codec.encode(torch.empty(2, 3, 100, device="meta"))
    assert carrier.shape == (2, 3, 52)
    assert codec.decode(carrier).shape == (2, 3, 100)


def test_several_tensors_and_undoing() -> None:
    class Two(nn.Module):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return values + mask, mask

    stage, codec = Two(), BoundaryCodec("int8", 8)
    handles = pack_boundaries(stage, [codec, None], [codec, None])
    values, mask = torch.arange(8.0), torch.ones(8)
    found, same = stage(codec.encode(values), mask)
    assert torch.equal(codec.decode(found), values + 1)
    assert torch.equal(same, mask)
    with pytest.raises(ValueError, match="2 codecs for 1 arguments"):
        stage(codec.encode(values))
    for handle in handles:
        handle.remove()
    assert torch.equal(stage(values, mask)[0], values + 1)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="'int9' is not a block format"):
        BoundaryCodec("int9", 8)
    with pytest.raises(ValueError, match="0 elements"):
        BoundaryCodec("int8", 0)
    with pytest.raises(TypeError, match=r"boundary of torch\.int64"):
        BoundaryCodec("int8", 8, torch.int64)
    codec = BoundaryCodec("int8", 8)
    with pytest.raises(ValueError, match=r"encode: expected a last dimension of 8, got the shape \(2, 9\)"):
        codec.encode(torch.ones(2, 9))
    with pytest.raises(TypeError, match=r"expected torch\.float32, got torch\.bfloat16"):
        codec.encode(torch.ones(2, 8, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"expected torch\.bfloat16, got torch\.float32"):
        codec.decode(torch.ones(2, codec.carrier_width))
    with pytest.raises(ValueError, match="decode: expected a last dimension of 5"):
        codec.decode(torch.ones(2, 8, dtype=torch.bfloat16))
