# SPDX-License-Identifier: Apache-2.0
"""Tensors of every kind: with memory that is not their value, with shared memory, without memory."""

import mmap
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

ANY = r"."
OBJECTS = ("*object*", "")
SKIPPED = "skipped"
NO_ZEROS = "zeros without memory|ZeroTensors are immutable"
REAL = torch.float32
COMPLEX = torch.complex64


def itself(values: torch.Tensor) -> torch.Tensor:
    return values


def read_back(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a dense tensor, on the CPU."""
    with torch.no_grad():
        return tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Kind:
    """One kind of tensor. `make` returns a tensor on a device that holds `fit` of the values. As an input or an
    output it is either accepted, or refused with an error of the given pattern."""

    name: str
    make: Callable[[torch.Tensor, str], torch.Tensor]
    no_input: str = ""
    no_output: str = ""
    fit: Callable[[torch.Tensor], torch.Tensor] = itself
    read: Callable[[torch.Tensor], torch.Tensor] = read_back
    dtype: torch.dtype = REAL
    devices: tuple[str, ...] = ("cpu", "sim")
    views_as_real: bool = False
    """Whether torch.distributed itself refuses it wherever it views complex numbers as pairs."""
    is_unwrapped: bool = False
    """Whether PyTorch unwraps it for Atoll, except in operators that take lists of lists, where it is refused."""
    but: tuple[tuple[str, str], ...] = ()
    """Other errors, by patterns of operations' names; "" for none."""

    def said(self, operation: str) -> str | None:
        return next((said for name, said in self.but if fnmatchcase(operation, name)), None)


def plain(values: torch.Tensor, device: str) -> torch.Tensor:
    return values.clone().to(device)


def negated(values: torch.Tensor, device: str) -> torch.Tensor:
    """Returns the imaginary part of a conjugate: lazily negated, with every other element of its storage."""
    tensor = torch.complex(torch.zeros_like(values), -values).to(device).conj().imag
    assert tensor.is_neg()
    return tensor


def negated_in_one_piece(values: torch.Tensor, device: str) -> torch.Tensor:
    tensor: torch.Tensor = torch._neg_view((-values).to(device))
    assert tensor.is_neg()
    return tensor


def conjugated(values: torch.Tensor, device: str) -> torch.Tensor:
    tensor = torch.conj_physical(values).to(device).conj()
    assert tensor.is_conj()
    return tensor


def negated_conjugate(values: torch.Tensor, device: str) -> torch.Tensor:
    tensor: torch.Tensor = torch._neg_view(torch.conj_physical(-values).to(device)).conj()
    assert tensor.is_conj()
    assert tensor.is_neg()
    return tensor


def no_memory_zeros(values: torch.Tensor, device: str) -> torch.Tensor:
    tensor: torch.Tensor = torch._efficientzerotensor(values.shape, dtype=values.dtype, device=device)
    assert tensor._is_zerotensor()
    return tensor


def rows_alike(values: torch.Tensor) -> torch.Tensor:
    return values[:1].expand_as(values).clone()


def expanded(values: torch.Tensor, device: str) -> torch.Tensor:
    return plain(values[:1], device).expand(values.shape)


def diagonals_alike(values: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    return values.flatten()[: rows + columns - 1].clone().as_strided((rows, columns), (1, 1)).clone()


def windows(values: torch.Tensor, device: str) -> torch.Tensor:
    """Returns overlapping rows, each of which starts one element after the previous one."""
    return plain(torch.cat([values[0], values[1:, -1]]), device).as_strided(values.shape, (1, 1))


def woven(values: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a tensor with interleaved strides but no two elements in one place."""
    assert values.shape[1] == 3
    rows = values.shape[0]
    base = torch.zeros(2 * 3 + 3 * 2 * rows, dtype=values.dtype, device=device)
    tensor = base.as_strided((rows, 3), (3, 2)) if rows == 2 else base.as_strided((rows, 3), (6, 2))
    return tensor.copy_(values)


def transposed(values: torch.Tensor, device: str) -> torch.Tensor:
    return plain(values.t().contiguous(), device).t()


def columns(values: torch.Tensor, device: str) -> torch.Tensor:
    base = torch.zeros(values.shape[0], values.shape[1] + 2, dtype=values.dtype, device=device)
    return base[:, 1:-1].copy_(values)


def unaligned(values: torch.Tensor, device: str) -> torch.Tensor:
    base = torch.zeros(values.nbytes + 8, dtype=torch.uint8)
    memory = memoryview(base.numpy())[1 : 1 + values.nbytes]
    return torch.frombuffer(memory, dtype=values.dtype).view(values.shape).copy_(values)


def leaf(values: torch.Tensor, device: str) -> torch.Tensor:
    return plain(values, device).requires_grad_()


def inferred(values: torch.Tensor, device: str) -> torch.Tensor:
    with torch.inference_mode():
        return plain(values, device)


def lazily_cloned(values: torch.Tensor, device: str) -> torch.Tensor:
    return torch._lazy_clone(plain(values, device))


class Named(torch.Tensor):
    """A subclass as users write them: a tensor with memory."""


def named(values: torch.Tensor, device: str) -> torch.Tensor:
    return plain(values, device).as_subclass(Named)


class Wrapper(torch.Tensor):
    """A subclass that stands for another tensor and has no memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        unwrapped = torch.utils._pytree.tree_map_only(Wrapper, lambda each: each.inner, (arguments, options or {}))
        return function(*unwrapped[0], **unwrapped[1])


def wrapped(values: torch.Tensor, device: str) -> torch.Tensor:
    made: torch.Tensor = Wrapper(plain(values, device))
    return made


def wrapped_values(tensor: torch.Tensor) -> torch.Tensor:
    return read_back(tensor.inner)  # type: ignore[attr-defined]


def functional(values: torch.Tensor, device: str) -> torch.Tensor:
    made: torch.Tensor = torch._to_functional_tensor(plain(values, device))
    return made


def functional_values(tensor: torch.Tensor) -> torch.Tensor:
    torch._sync(tensor)  # type: ignore[no-untyped-call]
    return read_back(torch._from_functional_tensor(tensor))


def resized_away(values: torch.Tensor, device: str) -> torch.Tensor:
    tensor = plain(values, device)
    tensor.untyped_storage().resize_(0)
    return tensor


def mapped_for_reading(values: torch.Tensor, device: str) -> torch.Tensor:
    with tempfile.TemporaryFile() as file:
        file.write(values.contiguous().view(torch.uint8).numpy().tobytes())
        file.flush()
        memory = mmap.mmap(file.fileno(), values.nbytes, prot=mmap.PROT_READ)
    return torch.frombuffer(memory, dtype=values.dtype).view(values.shape)


def quantized(values: torch.Tensor, device: str) -> torch.Tensor:
    return torch.quantize_per_tensor(values, 0.5, 0, torch.qint8)


def nested(values: torch.Tensor, device: str) -> torch.Tensor:
    return torch.nested.nested_tensor(list(values))


def jagged(values: torch.Tensor, device: str) -> torch.Tensor:
    return torch.nested.nested_tensor(list(values), layout=torch.jagged)


def dense_values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense()


def unbound_values(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack(list(tensor.unbind()))


def of_layout(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Kind:
    """Makes a kind for a sparse layout; sparse tensors can be pickled, and all_reduce accepts one layout."""
    summed = tuple((operation, "") for operation in ("all_reduce", "all_reduce async", "group.allreduce"))
    return Kind(name, lambda values, device: make(values), ANY, ANY, read=dense_values, devices=("cpu",),
                but=(("*object*", "Cannot access storage") if name == "mkldnn" else OBJECTS,
                     *(summed if name == "COO" else ())))  # fmt: skip


KINDS = [
    Kind("plain", plain),
    Kind("negated", negated),
    Kind("negated in one piece", negated_in_one_piece),
    Kind("conjugated", conjugated, dtype=COMPLEX, views_as_real=True),
    Kind("negated conjugate", negated_conjugate, dtype=COMPLEX, views_as_real=True),
    Kind("negated complex", negated_in_one_piece, dtype=COMPLEX),
    Kind(
        "zeros without memory",
        no_memory_zeros,
        "",
        NO_ZEROS,
        torch.zeros_like,
        but=(("*object*", "not serializable"),),
        devices=("cpu",),
    ),
    Kind("expanded", expanded, "", "share memory", rows_alike),
    Kind("windows", windows, "", "share memory", diagonals_alike),
    Kind("woven", woven),
    Kind("transposed", transposed),
    Kind("columns", columns),
    Kind("unaligned", unaligned, devices=("cpu",)),
    Kind("leaf", leaf),
    Kind("inference", inferred),
    Kind("lazy clone", lazily_cloned, devices=("cpu",)),
    Kind(
        "subclass",
        named,
        but=tuple(
            (f"functional {name}", "Creating a new Tensor subclass")
            for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        ),
    ),
    Kind("wrapper", wrapped, read=wrapped_values, is_unwrapped=True),
    Kind(
        "functional",
        functional,
        read=functional_values,
        is_unwrapped=True,
        but=(
            ("functional * in place", "custom"),
            ("functional * out", "custom"),
            ("*object*", "invalid python storage"),
        ),
    ),
    # PyTorch itself aborts a process that copies one, as some functional operators do.
    Kind(
        "resized away",
        resized_away,
        "without memory",
        "without memory",
        but=(("functional all_reduce", SKIPPED), ("functional reduce_scatter", SKIPPED), ("*object*", SKIPPED)),
    ),
    Kind("mapped for reading", mapped_for_reading, "", "mapped for reading only", devices=("cpu",)),
    # Functional operators return meta tensors, from which programs learn shapes, without communication.
    Kind(
        "meta",
        lambda values, device: values.to("meta"),
        ANY,
        ANY,
        but=tuple(
            (f"functional {name}", SKIPPED)
            for name in ("all_reduce*", "broadcast*", "all_gather", "reduce_scatter", "all_to_all")
        ),
    ),
    Kind("quantized", quantized, ANY, ANY, read=torch.dequantize, devices=("cpu",), but=(OBJECTS,)),
    # torch.distributed's functional all_to_all_single asks it for its shape, which fails before anything is called.
    Kind(
        "nested",
        nested,
        ANY,
        ANY,
        read=unbound_values,
        devices=("cpu",),
        but=(OBJECTS, ("functional all_to_all", SKIPPED)),
    ),
    Kind("jagged", jagged, ANY, ANY, read=unbound_values, devices=("cpu",), but=(OBJECTS,)),
    of_layout("mkldnn", torch.Tensor.to_mkldnn),
    of_layout("COO", torch.Tensor.to_sparse),
    of_layout("CSR", torch.Tensor.to_sparse_csr),
    of_layout("CSC", torch.Tensor.to_sparse_csc),
    of_layout("BSR", lambda values: values.to_sparse_bsr((1, 1))),
    of_layout("BSC", lambda values: values.to_sparse_bsc((1, 1))),
]
