# SPDX-License-Identifier: Apache-2.0
"""Stock Gloo for tensors on a device, as a baseline ("global-gloo"): each tensor is copied to the host as a whole, Gloo
transfers it, and it is copied back. The host waits for the device before it sends, and for the bytes before it
continues."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BarrierOptions, BroadcastOptions

NAME = "staged"


def register(device: str) -> None:
    """Makes `init_process_group("staged")` work for tensors on the CPU and on `device`; once per process."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=sorted({"cpu", device}))


def _create(settings: Any, options: Any) -> "Staged":
    return Staged(settings)


class _Message(dist._Work):
    """A message in flight. A received message is in `tensor` after `wait`."""

    def __init__(self, work: Any, host: torch.Tensor, tensor: torch.Tensor | None = None) -> None:
        super().__init__()
        self._work, self._host, self._tensor = work, host, tensor

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._work is not None:
            self._work.wait()
            self._work = None
            if self._tensor is not None and self._tensor is not self._host:
                self._tensor.detach().copy_(self._host)  # stages receive into leaves that require gradients
        return True

    def is_completed(self) -> bool:
        return self._work is None or bool(self._work.is_completed())


class Staged(dist.ProcessGroup):
    """One rank's backend with the operations that pipelines need. Collectives are complete when their call returns."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings.group_rank, settings.group_size)  # type: ignore[call-arg]
        store = dist.PrefixStore("staged/", settings.store)
        self._gloo = dist.ProcessGroupGloo(store, settings.group_rank, settings.group_size, timeout=settings.timeout)

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> _Message:
        host = _on_host(tensors)
        self._gloo.allreduce([host], opts or AllreduceOptions()).wait()
        return _over(host, tensors[0])

    def broadcast(  # type: ignore[override]
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> _Message:
        host = _on_host(tensors)
        self._gloo.broadcast([host], opts or BroadcastOptions()).wait()
        return _over(host, tensors[0])

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Message:
        host = torch.empty_like(output, device="cpu")
        rows = list(host.view(self.size(), -1).unbind())
        self._gloo.allgather([rows], [_on_host([input]).view(-1)], AllgatherOptions()).wait()
        return _over(host, output)

    def barrier(self, opts: Any = None) -> _Message:
        self._gloo.barrier(opts or BarrierOptions()).wait()
        return _over(torch.empty(0))

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> _Message:  # type: ignore[override]
        host = _on_host(tensors)
        return _Message(self._gloo.send([host], dst, tag), host)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> _Message:  # type: ignore[override]
        (tensor,) = tensors
        host = tensor.detach() if tensor.device.type == "cpu" else torch.empty(tensor.shape, dtype=tensor.dtype)
        return _Message(self._gloo.recv([host], src, tag), host, tensor)

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        return NAME


# The name of newer releases.
Staged.all_gather_single = Staged._allgather_base  # type: ignore[assignment, method-assign]


def _on_host(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the tensor itself if it is on the CPU, otherwise a copy made once the device has computed it."""
    (tensor,) = tensors
    return tensor.detach().cpu()


def _over(host: torch.Tensor, tensor: torch.Tensor | None = None) -> _Message:
    if tensor is not None and tensor is not host:
        tensor.detach().copy_(host)
    return _Message(None, host)
