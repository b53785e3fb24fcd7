# SPDX-License-Identifier: Apache-2.0
"""Weights as one safetensors file in which every tensor starts at a multiple of 64 bytes, so that a program that maps
the file computes with the same kernels, and the same bits, as one that allocates the weights.

The format allows no gaps: entries "_pad0", "_pad1", ... of dtype U8 fill them."""

import json
import math
import mmap
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from atoll.infer.dtypes import FROM_FILES, IN_FILES
from atoll.infer.errors import BundleError
from atoll.infer.graph import MAX_DIMENSIONS, MAX_ELEMENTS

ALIGNMENT = 64
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_PAD = re.compile(r"_pad[0-9]+")
_LENGTH_BYTES = 8


def pieces(weights: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the file in order, without a second copy of all weights."""
    header, gaps = _header(weights)
    yield header
    for tensor, gap in zip(weights.values(), gaps, strict=True):
        yield _bytes_of(tensor)
        yield bytes(gap)


def total_bytes(weights: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def map_file(path: Path) -> mmap.mmap:
    """Maps the bytes of a file. They cost no memory until they are used, and changes stay in this process. Raises
    BundleError if the file is empty or cannot be mapped."""
    try:
        with path.open("rb") as file:
            return map_open(file)
    except (OSError, ValueError) as error:  # a ValueError for an empty file
        raise BundleError(f"{path} cannot be mapped: {error}") from None


def map_open(file: IO[bytes]) -> mmap.mmap:
    """The same for an open file. Raises ValueError if it is empty."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def tensors_in(path: Path, mapped: mmap.mmap, wanted: Container[str]) -> dict[str, torch.Tensor]:
    """Returns the tensors of a mapped file without the padding; a name of padding may also be `wanted`. Messages name
    `path`. Raises BundleError if the file was not written by `pieces`."""
    begin, entries = _entries(path, mapped)
    found = {}
    end = 0
    for name, dtype, shape, first, last in sorted(entries, key=lambda entry: entry[3:]):
        if first != end:
            raise BundleError(
                f"{path}: {name} starts at byte {first} of the data, but the previous entry ends at {end}"
            )
        end = last
        if _PAD.fullmatch(name) and name not in wanted:
            continue
        if (begin + first) % ALIGNMENT:
            raise BundleError(f"{path}: {name} starts at byte {begin + first}, not at a multiple of {ALIGNMENT}")
        found[name] = _view(mapped, dtype, shape, begin + first, last - first)
    if begin + end != len(mapped):
        raise BundleError(f"{path} has {len(mapped)} bytes, but its header describes {begin + end}")
    return found


def _header(weights: Mapping[str, torch.Tensor]) -> tuple[bytes, list[int]]:
    """Returns the header, and the number of padding bytes after each tensor."""
    entries: dict[str, Any] = {}
    gaps = []
    pads = (name for number in range(2**62) if (name := f"_pad{number}") not in weights)
    offset = 0
    for name, tensor in weights.items():
        end = offset + tensor.nbytes
        entries[name] = {"dtype": IN_FILES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        gap = -end % ALIGNMENT
        if gap:
            entries[next(pads)] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
        gaps.append(gap)
        offset = end + gap
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, gaps


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().resolve_neg().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _entries(path: Path, mapped: mmap.mmap) -> tuple[int, list[tuple[str, torch.dtype, list[int], int, int]]]:
    """Returns the start of the data, and name, dtype, shape, first byte and end of each tensor; everything is checked
    except overlaps."""
    size = int.from_bytes(mapped[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + size
    if begin > len(mapped) or size > MAX_HEADER_BYTES:
        raise BundleError(f"{path} has {len(mapped)} bytes, but claims a header of {size} bytes")
    try:
        header = json.loads(mapped[_LENGTH_BYTES:begin])
        entries = [(name, entry["dtype"], entry["shape"], *entry["data_offsets"]) for name, entry in header.items()]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: its header cannot be read: {error}") from None
    checked = []
    for entry in entries:
        if len(entry) != 5 or not _is_right(*entry[1:], room=len(mapped) - begin):
            raise BundleError(f"{path}: {entry[0][:200]!r} in its header is not a tensor of this file")
        name, dtype, shape, first, last = entry
        checked.append((name, FROM_FILES[dtype], shape, first, last))
    return begin, checked


def _is_right(dtype: Any, shape: Any, first: Any, last: Any, room: int) -> bool:
    numbers = [*shape, first, last] if isinstance(shape, list) else [None]
    if not all(type(number) is int and 0 <= number < MAX_ELEMENTS for number in numbers) or last > room:
        return False
    if len(shape) > MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) >= MAX_ELEMENTS:
        return False
    known = FROM_FILES.get(dtype) if isinstance(dtype, str) else None
    return known is not None and math.prod(shape) * known.itemsize == last - first


def _view(mapped: mmap.mmap, dtype: torch.dtype, shape: list[int], first: int, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=first).view(dtype).view(shape)
