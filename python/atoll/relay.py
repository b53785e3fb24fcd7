# SPDX-License-Identifier: Apache-2.0
"""KAITIAN's bridge, as a baseline (ATOLL_BRIDGE=relay): one leader per island relays whole tensors through the host.

Inside an island its vendor's library reduces to the leader; the leader waits for the device, copies the whole tensor to
the host, Gloo runs the collective among the leaders, the leader copies the result back, and the library spreads it.
There are no chunks and no overlap: when its call returns, an operation is complete, or pending only on the device's
current stream."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from atoll import _C, communicators

_LEADER = 0  # the first rank of an island, numbered within the island
_KNOWN = "all_reduce, broadcast, all_gather, reduce_scatter_tensor and barrier"
_REFUSED = (
    "all_gather_single_coalesced", "all_to_all_single", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "allreduce_coalesced", "alltoall", "alltoall_base", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip


def make(settings: Any, make_atoll: Callable[[], _C.Backend]) -> "Relay":
    """Makes the relay of a new group, over the islands that Atoll finds. Blocks until all ranks have joined. Raises
    ValueError if some ranks were started without ATOLL_BRIDGE=relay, or an island has no library for its devices."""
    keys = [f"bridge/{rank}" for rank in range(settings.group_size)]
    settings.store.set(keys[settings.group_rank], "relay")
    atoll = make_atoll()  # finds the islands; all ranks have set their keys when it returns
    if others := [rank for rank, key in enumerate(keys) if not settings.store.check([key])]:
        raise ValueError(f"ATOLL_BRIDGE=relay is set here but not on ranks {others}: set it on all ranks or on none")
    return Relay(settings, atoll)


class _Done(dist._Work):
    """A completed operation with the result `tensors`."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        devices = {tensor.device for tensor in self._tensors if tensor.device.type != "cpu"}
        future: Any = torch.futures.Future(devices=[*devices])
        future.set_result(self._tensors)
        return future


class Relay(dist.ProcessGroup):
    """One rank's relay. Tensors must be contiguous, on the CPU or on this rank's device. Each wait is limited by the
    group's timeout. Not thread-safe."""

    def __init__(self, settings: Any, atoll: _C.Backend) -> None:
        super().__init__(settings.group_rank, settings.group_size)  # type: ignore[call-arg]
        self._atoll = atoll
        self._islands = [ranks for _, ranks in atoll.islands()]
        self._rank, self._size = settings.group_rank, settings.group_size
        self._mine = next(index for index, ranks in enumerate(self._islands) if self._rank in ranks)
        self._island = self._islands[self._mine]
        self._leads = self._island[_LEADER] == self._rank
        self._host = torch.empty(0, dtype=torch.uint8)
        self._inside: dict[str, Any] = {}  # by device type; empty for an island of one rank
        self._between: Any = None  # among the leaders
        if len(self._island) > 1:
            self._join_inside(settings)
        if self._leads and len(self._islands) > 1:
            self._between = self._connect(
                settings, "between", "gloo", "cpu", [ranks[_LEADER] for ranks in self._islands]
            )

    def _join_inside(self, settings: Any) -> None:
        device, library = self._atoll.device(), self._atoll.libraries()[self._mine]
        self._inside["cpu"] = self._connect(settings, f"inside/{self._mine}/cpu", "gloo", "cpu", self._island)
        if device == "cpu":
            return
        if not library:
            raise ValueError(
                f"the relay needs a library on {device} for the island of ranks {self._island}: put each rank into a "
                f"separate island (ATOLL_ISLAND), or name the library with ATOLL_INNER"
            )
        self._inside[device] = self._connect(settings, f"inside/{self._mine}/{device}", library, device, self._island)

    def _connect(self, settings: Any, name: str, library: str, device: str, ranks: list[int]) -> Any:
        everybody = list(settings.global_ranks_in_group) or list(range(self._size))
        store = dist.PrefixStore(f"relay/{name}/", settings.store)
        return communicators.connect(
            communicators.Request(
                library, device, store, ranks.index(self._rank), len(ranks), settings.timeout,
                f"{settings.group_id}/relay/{name}", [everybody[rank] for rank in ranks],
            )
        )  # fmt: skip

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:  # type: ignore[override]
        tensor, inside = self._checked("all_reduce", tensors)
        op, divisor = self._reduction(opts)
        if inside and len(self._islands) == 1:
            _all_reduce(inside, tensor, op).wait()
            return self._divided(tensor, divisor)
        if inside:
            _reduce(inside, tensor, op, _LEADER).wait()
        if self._between:
            with self._on_host(tensor) as host:
                _all_reduce(self._between, host, op).wait()
        if inside:
            _broadcast(inside, tensor, _LEADER).wait()
        return self._divided(tensor, divisor)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:  # type: ignore[override]
        tensor, inside = self._checked("broadcast", tensors)
        root: int = opts.rootRank if opts else 0
        island = next(index for index, ranks in enumerate(self._islands) if root in ranks)
        if inside and island == self._mine:
            _broadcast(inside, tensor, self._island.index(root)).wait()
        if self._between:
            with self._on_host(tensor, back=island != self._mine) as host:
                _broadcast(self._between, host, island).wait()
        if inside and island != self._mine:
            _broadcast(inside, tensor, _LEADER).wait()
        return _Done([tensor])

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Done:
        _, inside = self._checked("all_gather_into_tensor", [input])
        self._checked("all_gather_into_tensor", [output])
        if inside and len(self._islands) == 1:
            inside._allgather_base(output.view(-1), input.view(-1), AllgatherOptions()).wait()
            return _Done([output])
        rows, block = output.view(self._size, input.numel()), input.view(1, input.numel())
        if inside:
            block = torch.empty(len(self._island), input.numel(), dtype=input.dtype, device=input.device)
            inside._allgather_base(block.view(-1), input.view(-1), AllgatherOptions()).wait()
        if self._between:
            self._exchange_blocks(block, rows)
        elif not inside:  # the only rank
            rows.copy_(block)
        if inside:
            _broadcast(inside, output, _LEADER).wait()
        return _Done([output])

    def _exchange_blocks(self, block: torch.Tensor, rows: torch.Tensor) -> None:
        """Sends each leader's block to all leaders, in one broadcast per island, all concurrently."""
        host = self._host_like(rows)
        parts = self._by_island(host)
        parts[self._mine].copy_(block)
        _wait_all([_broadcast(self._between, part, root) for root, part in enumerate(parts)])
        self._permute(host, rows, back=True)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Done:
        _, inside = self._checked("reduce_scatter_tensor", [output])
        self._checked("reduce_scatter_tensor", [input])
        op, divisor = self._reduction(opts)
        rows = input.view(self._size, output.numel())
        if len(self._islands) == 1 and inside:
            options = _with(ReduceScatterOptions(), reduceOp=op)
            inside._reduce_scatter_base(output.view(-1), input.view(-1), options).wait()
            return self._divided(output, divisor)
        if inside:
            rows = rows.clone()
            _reduce(inside, rows, op, _LEADER).wait()
        block = rows
        if self._between:
            block = torch.empty(len(self._island), output.numel(), dtype=output.dtype, device=output.device)
            self._reduce_blocks(rows, op, block)
        if inside:
            parts = list(block.unbind()) if self._leads else []
            options = _with(ScatterOptions(), rootRank=_LEADER)
            inside.scatter([output.view(-1)], [parts] if parts else [], options).wait()
        else:
            output.view(-1).copy_(block.view(-1))
        return self._divided(output, divisor)

    def _reduce_blocks(self, rows: torch.Tensor, op: Any, block: torch.Tensor) -> None:
        """Reduces each island's rows to its leader, in one reduction per island, all concurrently."""
        host = self._host_like(rows)
        self._permute(host, rows, back=False)
        parts = self._by_island(host)
        _wait_all([_reduce(self._between, part, op, root) for root, part in enumerate(parts)])
        block.copy_(parts[self._mine])

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Done:
        tensor, _ = self._checked("all_gather", inputs)
        whole = torch.empty(self._size, tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        self._allgather_base(whole, tensor)
        for output, row in zip(outputs[0], whole, strict=True):
            output.copy_(row.view(tensor.shape))
        return _Done(outputs[0])

    def barrier(self, opts: Any = None) -> _Done:
        byte = torch.zeros(1, dtype=torch.uint8)
        if self._atoll.device() != "cpu":
            torch.accelerator.synchronize()
        return _Done(self.allreduce([byte]).result()[:0])

    def _checked(self, operation: str, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, Any]:
        """Returns the tensor, and the island's backend for it."""
        if len(tensors) != 1:
            raise ValueError(f"the relay takes one tensor for {operation}, got {len(tensors)}")
        tensor = tensors[0]
        if not tensor.is_contiguous():
            raise ValueError(f"the relay takes contiguous tensors, {operation} got one of strides {tensor.stride()}")
        if tensor.device.type not in ("cpu", self._atoll.device()):
            raise ValueError(f"{operation} got a tensor on {tensor.device}; this rank is on {self._atoll.device()}")
        return tensor, self._inside.get(tensor.device.type)

    def _reduction(self, opts: Any) -> tuple[Any, int]:
        """Returns the operation of Gloo and the library, and the divisor of the sum."""
        op = opts.reduceOp if opts else dist.ReduceOp.SUM
        return (dist.ReduceOp.SUM, self._size) if op == dist.ReduceOp.AVG else (op, 1)

    def _divided(self, tensor: torch.Tensor, divisor: int) -> _Done:
        if divisor > 1:
            tensor.div_(divisor)
        return _Done([tensor])

    @contextlib.contextmanager
    def _on_host(self, tensor: torch.Tensor, back: bool = True) -> Iterator[torch.Tensor]:
        """Provides the whole tensor in host memory, copied `back` to the device at the end; on the CPU the tensor
        itself."""
        if tensor.device.type == "cpu":
            yield tensor
            return
        host = self._host_like(tensor)
        host.copy_(tensor)
        yield host
        if back:
            tensor.copy_(host)

    def _host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns host memory of that shape, the same at each call; pinned if the tensor is on an accelerator."""
        size = tensor.numel() * tensor.element_size()
        pinned = tensor.device.type != "cpu"
        if self._host.numel() < size or (pinned and not self._host.is_pinned()):
            self._host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return self._host[:size].view(tensor.dtype).view(tensor.shape)

    def _by_island(self, host: torch.Tensor) -> list[torch.Tensor]:
        """Returns each island's rows, of rows in the order of the islands."""
        return list(torch.split(host, [len(ranks) for ranks in self._islands]))

    def _permute(self, host: torch.Tensor, rows: torch.Tensor, back: bool) -> None:
        """Copies between rows by rank and rows in the order of the islands; a single copy if both orders are equal."""
        order = [rank for ranks in self._islands for rank in ranks]
        pairs = [(host, rows)] if order == sorted(order) else [(host[i], rows[rank]) for i, rank in enumerate(order)]
        for there, here in pairs:
            if back:
                here.copy_(there)
            else:
                there.copy_(here)

    def _backends(self) -> list[Any]:
        return [backend for backend in (*self._inside.values(), self._between) if backend is not None]

    def abort(self) -> None:
        for backend in [*self._backends(), self._atoll]:
            backend.abort()

    def shutdown(self) -> None:
        for backend in [*self._backends(), self._atoll]:
            backend.shutdown()

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        return "relay"


def _refusing(operation: str) -> Any:
    def refuse(self: Relay, *_arguments: Any, **_more: Any) -> Any:
        raise NotImplementedError(
            f"the relay (ATOLL_BRIDGE=relay) does not support {operation}, only {_KNOWN}: unset ATOLL_BRIDGE to use "
            "Atoll's own bridge"
        )

    return refuse


# Names of newer PyTorch releases.
Relay.all_gather_single = Relay._allgather_base  # type: ignore[assignment, method-assign]
Relay.reduce_scatter_single = Relay._reduce_scatter_base  # type: ignore[assignment, method-assign]
for _name in _REFUSED:
    setattr(Relay, _name, _refusing(_name))


def _with(options: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _broadcast(backend: Any, tensor: torch.Tensor, root: int) -> Any:
    return backend.broadcast([tensor], _with(BroadcastOptions(), rootRank=root))


def _reduce(backend: Any, tensor: torch.Tensor, op: Any, root: int) -> Any:
    return backend.reduce([tensor], _with(ReduceOptions(), rootRank=root, reduceOp=op))


def _all_reduce(backend: Any, tensor: torch.Tensor, op: Any) -> Any:
    return backend.allreduce([tensor], _with(AllreduceOptions(), reduceOp=op))


def _wait_all(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()
