# SPDX-License-Identifier: Apache-2.0
"""Boundaries of pipeline stages as packed blocks: activations forward, their gradients backward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from atoll.packing.blocks import check_format, pack, packed_bytes, unpack

_CARRIER = torch.bfloat16
_CARRIER_BYTES = 2


class BoundaryCodec:
    """Packs one tensor of a boundary: `encode` at the end of a stage, `decode` at the start of the next, which has a
    codec with the same arguments. Gradients are packed too: the backward pass of `decode` packs them, that of `encode`
    unpacks them.

    The bytes are sent as bfloat16, because autograd and torch.distributed.pipelining send gradients only of
    floating-point tensors. The shape is that of the tensor except for the last dimension, so that shapes are inferred
    as usual. Nothing may be computed with it; so nothing that casts inputs, such as FSDP's mixed precision, may come
    between the two.

    There is no error feedback: the next micro-batch has other samples, whose activations and gradients the loss of
    earlier samples would only disturb. Rounding to nearest keeps runs reproducible."""

    def __init__(self, format: str, width: int, dtype: torch.dtype = torch.float32) -> None:
        """For tensors of `dtype`, floating-point with at least 16 bits, whose last dimension has `width` elements.
        Blocks do not span rows."""
        if width < 1:
            raise ValueError(f"a boundary's last dimension has {width} elements: expected at least 1")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            raise TypeError(f"a boundary of {dtype} cannot be packed: expected float32, bfloat16, float16 or float64")
        self.format, self.width, self.dtype = check_format(format), width, dtype
        self.carrier_width = -(-packed_bytes(width) // _CARRIER_BYTES)

    @property
    def bytes_per_row(self) -> int:
        """Bytes per row on the wire, in each direction; bfloat16 takes 2 * width."""
        return _CARRIER_BYTES * self.carrier_width

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Packs (..., width) into (..., carrier_width). Raises ValueError for other shapes and TypeError for other
        types."""
        self._check("encode", values, self.width, self.dtype)
        encoded: torch.Tensor = _Encode.apply(values, self)  # type: ignore[no-untyped-call]
        return encoded

    def decode(self, carrier: torch.Tensor) -> torch.Tensor:
        """Unpacks the result of `encode`. Raises the same errors."""
        self._check("decode", carrier, self.carrier_width, _CARRIER)
        decoded: torch.Tensor = _Decode.apply(carrier, self)  # type: ignore[no-untyped-call]
        return decoded

    def _check(self, what: str, tensor: torch.Tensor, width: int, dtype: torch.dtype) -> None:
        if tensor.dim() == 0 or tensor.size(-1) != width:
            raise ValueError(
                f"{what}: expected a last dimension of {width}, got the shape {tuple(tensor.shape)}: both sides of a "
                f"boundary need BoundaryCodec({self.format!r}, {self.width}, {self.dtype})"
            )
        if tensor.dtype != dtype:
            raise TypeError(f"{what}: expected {dtype}, got {tensor.dtype}: pass the boundary's dtype to BoundaryCodec")

    def packed(self, values: torch.Tensor) -> torch.Tensor:
        """Does `encode` without gradients and checks."""
        shape = (*values.shape[:-1], self.carrier_width)
        carrier = torch.empty(shape, dtype=_CARRIER, device=values.device)
        if not carrier.is_meta:
            rows = carrier.view(torch.uint8).view(-1, self.bytes_per_row)
            pack(self.format, values.contiguous(), rows, self.width)
        return carrier

    def unpacked(self, carrier: torch.Tensor) -> torch.Tensor:
        """Does `decode` without gradients and checks."""
        values = torch.empty((*carrier.shape[:-1], self.width), dtype=self.dtype, device=carrier.device)
        if not values.is_meta:
            rows = carrier.contiguous().view(torch.uint8).view(-1, self.bytes_per_row)
            unpack(self.format, rows, values, self.width)
        return values


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, codec: BoundaryCodec) -> torch.Tensor:
        ctx.codec = codec
        return codec.packed(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.codec.unpacked(gradients[0]), None


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carrier: torch.Tensor, codec: BoundaryCodec) -> torch.Tensor:
        ctx.codec = codec
        return codec.unpacked(carrier)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.codec.packed(gradients[0]), None


Codecs = BoundaryCodec | Sequence[BoundaryCodec | None]


def pack_boundaries(
    stage: nn.Module, incoming: Codecs | None = None, outgoing: Codecs | None = None
) -> list[RemovableHandle]:
    """Decodes a stage's inputs and encodes its outputs, by hooks, so that its parameters keep their names. `incoming`
    is None for the first stage, `outgoing` for the last. A sequence has a codec for each positional argument or result,
    or None to leave it unchanged. Call it last, after fully_shard for example. Removing the returned handles undoes
    it."""
    handles = []
    if incoming is not None:
        before = _each(incoming, BoundaryCodec.decode, "argument")
        handles.append(stage.register_forward_pre_hook(lambda _module, inputs: before(inputs), prepend=True))
    if outgoing is not None:
        after = _each(outgoing, BoundaryCodec.encode, "result")

        def encode(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
            return after(tuple(outputs)) if isinstance(outputs, tuple | list) else after((outputs,))[0]

        handles.append(stage.register_forward_hook(encode))
    return handles


def _each(
    codecs: Codecs, change: Callable[[BoundaryCodec, torch.Tensor], torch.Tensor], what: str
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    of = (codecs,) if isinstance(codecs, BoundaryCodec) else tuple(codecs)

    def changed(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(tensors) != len(of):
            raise ValueError(
                f"{len(of)} codecs for {len(tensors)} {what}s of a stage: give one for each, or None to leave it "
                "unchanged"
            )
        pairs = zip(of, tensors, strict=True)
        return tuple(tensor if codec is None else change(codec, tensor) for codec, tensor in pairs)

    return changed
