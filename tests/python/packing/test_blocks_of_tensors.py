# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators and Atoll's library encode the same values to the same bytes, and decode them to the same
values."""

import pytest
import torch

from atoll.packing.blocks import FORMATS, check_format, pack, pack_anywhere, packed_bytes, unpack, unpack_anywhere
from client_ranks import on_layouts
from support import device

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((0, 5), (1, 1), (3, 31), (2, 32), (5, 33), (4, 64), (2, 1000), (1, 4099))


def values_of(count: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-140, 128, (count,), generator=chance).float()
    wide = torch.randn(count, generator=chance) * torch.exp2(exponents)
    near = torch.randn(count, generator=chance) * torch.exp2(torch.randint(-8, 8, (count,), generator=chance).float())
    values = torch.where(torch.rand(count, generator=chance) < 0.5, wide, near)
    spoilt = torch.rand(count, generator=chance)
    values[spoilt < 0.002] = float("nan")
    values[spoilt > 0.998] = -float("inf")
    values[(spoilt > 0.4) & (spoilt < 0.5)] = 0
    return values.to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.double().nan_to_num(nan=7e77), b.double().nan_to_num(nan=7e77))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bytes_and_values(format: str, dtype: torch.dtype) -> None:
    for seed, (rows, row) in enumerate(SHAPES):
        for missing, wider in ((0, 0), (row // 2, 3)):
            values = values_of(max(0, rows * row - missing), seed, dtype)
            shape = rows, packed_bytes(row) + wider
            here, anywhere = torch.full(shape, 9, dtype=torch.uint8), torch.full(shape, 8, dtype=torch.uint8)
            pack(format, values, here, row)
            pack_anywhere(format, values, anywhere, row)
            assert torch.equal(here, anywhere), (rows, row, missing)
            found, other = torch.empty_like(values), torch.empty_like(values)
            unpack(format, here, found, row)
            unpack_anywhere(format, here, other, row)
            assert same_bits(found, other), (rows, row, missing)


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_losses_and_sums(format: str) -> None:
    for seed, (rows, row) in enumerate(SHAPES):
        values = values_of(max(0, rows * row - 5), seed, torch.float32)
        packed = torch.empty(rows, packed_bytes(row), dtype=torch.uint8)
        here, anywhere = values.clone(), values.clone()
        pack(format, here, packed, row, keep_loss=True)
        pack_anywhere(format, anywhere, packed.clone(), row, keep_loss=True)
        assert same_bits(here, anywhere)
        found = torch.empty_like(values)
        unpack(format, packed, found, row)
        finite = found.isfinite()
        assert torch.equal((found + here.double())[finite], values.double()[finite])
        assert here[~finite].eq(0).all()
        sums = [torch.ones_like(values), torch.ones_like(values)]
        unpack(format, packed, sums[0], row, add=True)
        unpack_anywhere(format, packed, sums[1], row, add=True)
        assert same_bits(sums[0], found + 1)
        assert same_bits(sums[1], found + 1)


@on_layouts("aa")
def test_devices_make_the_same_bytes(rank: int, size: int) -> None:
    for format in FORMATS:
        values = values_of(1000, rank, torch.float32)
        packed = [torch.empty(10, packed_bytes(100), dtype=torch.uint8, device=place) for place in ("cpu", device())]
        for each in packed:
            pack(format, values.to(each.device), each, 100)
        assert torch.equal(packed[0], packed[1].cpu())
        found = [torch.empty(1000, device=each.device) for each in packed]
        for each, into in zip(packed, found, strict=True):
            unpack(format, each, into, 100)
        assert same_bits(found[0], found[1].cpu())


def test_a_value_that_is_not_finite_is_never_lost() -> None:
    for format in FORMATS:
        for bad in (float("nan"), float("inf"), -float("inf")):
            for dtype in DTYPES:
                values = torch.ones(70, dtype=dtype)
                values[33] = bad
                packed = torch.empty(1, packed_bytes(70), dtype=torch.uint8)
                pack(format, values, packed, 70)
                found = torch.empty_like(values)
                unpack(format, packed, found, 70)
                assert found[32:64].isnan().all()
                assert found[:32].eq(1).all()
                assert found[64:].eq(1).all()


def test_bad_arguments() -> None:
    values, packed = torch.ones(64), torch.empty(1, 66, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"choose (from )?int8, fp8_e4m3"):
        check_format("int4")
    with pytest.raises(ValueError, match=r"choose (from )?int8, fp8_e4m3"):
        pack("int4", values, packed, 64)
    with pytest.raises(TypeError, match="values are int64: expected float32"):
        pack("int8", values.long(), packed, 64)
    with pytest.raises(ValueError, match="65 values are more than 1 rows of 64"):
        pack("int8", torch.ones(65), packed, 64)
    with pytest.raises(ValueError, match="a row of 65 values takes 68 bytes, not 66"):
        pack("int8", values, packed, 65)
    with pytest.raises(ValueError, match="contiguous"):
        unpack("int8", packed, torch.ones(64, 2)[:, 0], 64)
    with pytest.raises(ValueError, match="packed bytes in two dimensions"):
        unpack("int8", packed.view(-1), values, 64)
    with pytest.raises(TypeError, match="keep_loss needs float32"):
        pack("int8", values.double(), packed, 64, keep_loss=True)
    with pytest.raises(TypeError, match="add needs float32"):
        unpack("int8", packed, values.double(), 64, add=True)
