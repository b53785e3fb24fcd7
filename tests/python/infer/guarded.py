# SPDX-License-Identifier: Apache-2.0
"""Calls operators in a process of their own, with tensors that end where mapped memory ends."""

import ctypes
import json
import mmap
import resource
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from atoll.infer.arguments import decode
from atoll.infer.dtypes import BY_NAME, name_of

SECONDS = 30  # the limit of one call
MEMORY = 1 << 30  # memory that calls may use in addition


class Guarded:
    """A child process that calls operators. If it has ended, the next call starts it again."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns {"outputs": [{"dtype", "shape"}]}, {"error": text, "kind": name}, or {"ended": how the process
        died}."""
        if self._child is None:
            command = [sys.executable, str(Path(__file__))]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], SECONDS)
        line = child.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        child.kill()
        self._child = None
        return {"ended": f"status {child.wait()}" if ready else f"no answer after {SECONDS} s"}

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _values(dtype: torch.dtype, shape: list[int], wild: bool) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    if dtype == torch.bool:
        return torch.randint(2, shape) > 0
    if wild:  # -1, 1 and the lowest number
        lowest = torch.rand(shape) < 0.5
        return torch.randint(2, shape).mul(2).sub(1).to(dtype).masked_fill(lowest, torch.iinfo(dtype).min)
    return torch.randint(3, shape).to(dtype)


def _guarded(described: dict[str, Any], request: dict[str, Any], areas: list[tuple[int, int]]) -> torch.Tensor:
    """Returns a tensor between two inaccessible pages; it starts right after the first one or ends right before the
    second."""
    filled = _values(BY_NAME[described["dtype"]], described["shape"], request["wild"])
    used = filled.numel() * filled.element_size()
    if used == 0:
        return filled
    libc, page = _libc(), mmap.PAGESIZE
    room = -(-used // page) * page
    area = libc.mmap(None, room + 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0)
    areas.append((area, room + 2 * page))
    libc.mprotect(area, page, 0)
    libc.mprotect(area + page + room, page, 0)
    begin = area + page if request["front"] else area + page + room - used
    memory = (ctypes.c_char * used).from_address(begin)
    tensor = torch.frombuffer(memory, dtype=filled.dtype).reshape(filled.shape)
    return tensor.copy_(filled)


def _answer(request: dict[str, Any], areas: list[tuple[int, int]]) -> dict[str, Any]:
    torch.manual_seed(request["seed"])
    tensors = [_guarded(described, request, areas) for described in request["operands"]]
    arguments = [decode(argument, tensors, torch.device("cpu")) for argument in request["args"]]
    name = request["op"].removeprefix("aten::")
    name = "reshape" if name in ("view", "_unsafe_view") else name
    operator = getattr(getattr(torch.ops.aten, name), request["overload"] or "default")
    schema = operator._schema.arguments
    first = next((place for place, argument in enumerate(schema) if argument.kwarg_only), len(schema))
    named = {argument.name: value for argument, value in zip(schema[first:], arguments[first:], strict=True)}
    try:
        result = operator(*arguments[:first], **named)
    except Exception as error:
        if "Expected a value of type" in str(error):  # it does not fit the schema, so it is never called
            return {"skipped": True}
        return {"error": str(error)[:300], "kind": type(error).__name__}
    outputs = list(result) if isinstance(result, list | tuple) else [result]
    # Every byte of the result is read as well.
    total = sum(float(output.to(torch.float64).nan_to_num().sum()) for output in outputs)
    described = [{"dtype": name_of(output.dtype), "shape": list(output.shape)} for output in outputs]
    return {"outputs": described, "sum": str(total)}


def _serve() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warm = torch.nn.functional.conv2d(torch.ones(1, 3, 16, 16), torch.ones(4, 3, 3, 3))
    torch.nn.functional.scaled_dot_product_attention(warm, warm, warm)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        areas: list[tuple[int, int]] = []
        print(json.dumps(_answer(json.loads(line), areas)), flush=True)
        for area, size in areas:
            _libc().munmap(area, size)


if __name__ == "__main__":
    _serve()
