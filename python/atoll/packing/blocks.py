# SPDX-License-Identifier: Apache-2.0
"""Blocks of 32 numbers of 8 bits that share a scale (atoll/collectives/reduce/blocks.h), on any device: on CPUs by
Atoll's own library, elsewhere by PyTorch's operators, with the same bits. fp8 needs a device with PyTorch's float8
types."""

from dataclasses import dataclass

import torch

BLOCK = 32
_NAN_SCALE = 255
_NAN_BITS = 0x7FC00000


@dataclass(frozen=True)
class _Elements:
    """The constants of one format."""

    dtype: torch.dtype
    top_exponent: int
    """The exponent of the largest number."""
    top_mantissa: int
    """The mantissa of the largest number, in float32's bits."""
    least_scale: int


_ELEMENTS = {
    "int8": _Elements(torch.int8, 6, 0x7E0000, 2),
    "fp8_e4m3": _Elements(torch.float8_e4m3fn, 8, 0x600000, 11),
    "fp8_e5m2": _Elements(torch.float8_e5m2, 15, 0x600000, 18),
}
FORMATS = tuple(_ELEMENTS)


def check_format(format: str) -> str:
    """Returns the format. Raises ValueError for an unknown one."""
    if format not in _ELEMENTS:
        raise ValueError(f"{format!r} is not a block format: choose from {', '.join(FORMATS)}")
    return format


def packed_bytes(count: int) -> int:
    """Returns the packed size of `count` numbers: one byte for each, and one for each block."""
    return count + -(-count // BLOCK)


def pack(format: str, values: torch.Tensor, packed: torch.Tensor, row: int, keep_loss: bool = False) -> None:
    """Packs contiguous floating-point `values`, in rows of `row`, into the rows of `packed` (uint8, with at least as
    many rows as needed, at least packed_bytes(row) wide). Values missing from the last rows count as zeros, and extra
    bytes of a row are set to zero. With `keep_loss` the values, which must be float32, are replaced by the loss; by
    zeros in blocks that are not finite."""
    if values.device.type == "cpu":
        from atoll import _C

        _C.pack_blocks(format, values, packed, row, keep_loss)
    else:
        pack_anywhere(format, values, packed, row, keep_loss)


def unpack(format: str, packed: torch.Tensor, values: torch.Tensor, row: int, add: bool = False) -> None:
    """Fills contiguous floating-point `values` from rows made by `pack`; with `add` adds to them, which then must be
    float32."""
    if values.device.type == "cpu":
        from atoll import _C

        _C.unpack_blocks(format, packed, values, row, add)
    else:
        unpack_anywhere(format, packed, values, row, add)


def pack_anywhere(format: str, values: torch.Tensor, packed: torch.Tensor, row: int, keep_loss: bool = False) -> None:
    """Does `pack` by PyTorch's operators."""
    elements = _ELEMENTS[format]
    rows, blocks = packed.size(0), -(-row // BLOCK)
    if rows == 0 or row == 0:
        return
    padded = values.new_zeros((rows, blocks * BLOCK), dtype=torch.float32)
    _to_rows(values, padded, row)
    wide = padded.view(rows, blocks, BLOCK)
    scales = _scales(elements, wide)
    bad = (scales == _NAN_SCALE).unsqueeze(-1)
    inverse = ((254 - scales.clamp(max=254)) << 23).view(torch.float32)
    scaled = (wide * inverse.unsqueeze(-1)).masked_fill_(bad, 0)
    codes = (scaled.round() if format == "int8" else scaled).to(elements.dtype)
    packed.zero_()
    packed[:, :row] = codes.view(torch.uint8).view(rows, -1)[:, :row]
    packed[:, row : row + blocks] = scales.to(torch.uint8)
    if keep_loss:
        wide.sub_(_decoded(elements, codes, scales)).masked_fill_(bad, 0)
        values.view(-1).copy_(_of_rows(padded, values, row))


def unpack_anywhere(format: str, packed: torch.Tensor, values: torch.Tensor, row: int, add: bool = False) -> None:
    """Does `unpack` by PyTorch's operators."""
    elements = _ELEMENTS[format]
    rows, blocks = packed.size(0), -(-row // BLOCK)
    if rows == 0 or row == 0:
        return
    codes = packed.new_zeros((rows, blocks * BLOCK))
    codes[:, :row] = packed[:, :row]
    scales = packed[:, row : row + blocks].to(torch.int32)
    found = _decoded(elements, codes.view(rows, blocks, BLOCK).view(elements.dtype), scales)
    limit = min(torch.finfo(values.dtype).max, torch.finfo(torch.float32).max)
    flat = _of_rows(found.clamp_(-limit, limit).view(rows, -1), values, row)
    if add:
        values.view(-1).add_(flat)
    else:
        values.view(-1).copy_(flat)


def _to_rows(values: torch.Tensor, padded: torch.Tensor, row: int) -> None:
    flat = values.view(-1)
    whole = flat.numel() // row
    padded[:whole, :row] = flat[: whole * row].view(whole, row)
    if flat.numel() > whole * row:
        padded[whole, : flat.numel() - whole * row] = flat[whole * row :]


def _of_rows(padded: torch.Tensor, values: torch.Tensor, row: int) -> torch.Tensor:
    """Returns as many numbers as there are `values`, without the padding of rows."""
    return padded[:, :row].reshape(-1)[: values.numel()]


def _scales(elements: _Elements, wide: torch.Tensor) -> torch.Tensor:
    """Returns the biased exponents of the blocks' scales, int32, from the bits of their largest magnitudes."""
    most = (wide.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    exponent = most >> 23
    above = ((most & 0x7FFFFF) > elements.top_mantissa).to(torch.int32)
    scales = (exponent - elements.top_exponent + above).clamp(min=elements.least_scale)
    return scales.masked_fill(exponent == 255, _NAN_SCALE)


def _decoded(elements: _Elements, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    steps = (scales << 23).masked_fill(scales == _NAN_SCALE, _NAN_BITS).view(torch.float32)
    limit = torch.finfo(torch.float32).max
    return codes.to(torch.float32).mul_(steps.unsqueeze(-1)).clamp_(-limit, limit)
