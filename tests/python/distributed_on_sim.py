# SPDX-License-Identifier: Apache-2.0
"""Makes PyTorch's distributed_test use simulated devices for CUDA's: its tests say "cuda" where they mean the
accelerator."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SYNC_BATCH_NORM = "PyTorch has no kernels of SyncBatchNorm for CPUs, on which simulated devices compute"
DIVIDED = "divides by the number of ranks before the sum and after it: the same bits for powers of two only"
LIMIT = "a wait with a limit lasts until the device is done over NCCL, until all is enqueued between Atoll's islands"
NEW_PARAMETERS = "marks parameters, then moves the model: to devices of PyTorch's extension point it makes new ones"
PYTORCH_WITHOUT_NCCL = "PyTorch's profiler asks for NCCL's version, or its checks for hashes that are built with NCCL"

# Tests that cannot run on simulated devices, by the backend that they are for, each with its reason.
BOTH = {
    "test_DistributedDataParallel_SyncBatchNorm": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": SYNC_BATCH_NORM,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": SYNC_BATCH_NORM,
    "test_ddp_logging_data_gpu": "asks DDP's timers, which PyTorch has for CUDA and CPUs only",
    "test_ddp_native_mixed_precision_ignored_params": NEW_PARAMETERS,
    "test_ddp_uneven_inputs": "its convolutions of a million pixels take hours on CPUs",
}
NOT_RUN: dict[str, dict[str, str]] = {
    "gloo": {**BOTH, "test_sparse_all_reduce_sum_cuda": "simulated devices have no sparse tensors"},
    "nccl": {
        **BOTH,
        "test_send_recv_nccl_torch_profiler": PYTORCH_WITHOUT_NCCL,
        "test_ddp_profiling_torch_profiler": PYTORCH_WITHOUT_NCCL,
        "test_all_gather_object_default_pg": PYTORCH_WITHOUT_NCCL,
        "test_all_gather_object_subgroup": PYTORCH_WITHOUT_NCCL,
        "test_gather_object": PYTORCH_WITHOUT_NCCL,
        "test_gather_object_subgroup": PYTORCH_WITHOUT_NCCL,
    },
}
NOT_RUN_BY_ODD_RANKS = {
    "test_ddp_apply_optim_in_backward": DIVIDED,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": DIVIDED,
}
NOT_RUN_BY_ISLANDS = {
    "test_monitored_barrier_allreduce_hang": LIMIT,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": LIMIT,
}


def not_run(name: str, ranks: int, islands: int) -> dict[str, str]:
    """Returns the tests that are left out, with the reason."""
    is_power = ranks & (ranks - 1) == 0
    return {
        **NOT_RUN[name],
        **({} if is_power else NOT_RUN_BY_ODD_RANKS),
        **({} if islands < 2 else NOT_RUN_BY_ISLANDS),
    }


def as_sim(device: Any) -> Any:
    """Returns the simulated device if a CUDA device is meant, and anything else unchanged."""
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("sim") if device.index is None else torch.device("sim", device.index)
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "sim" + device.removeprefix("cuda")
    return device


class CudaMeansSim(TorchFunctionMode):
    """A context in which calls that name a CUDA device get a simulated one."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: as_sim(value) for name, value in (kwargs or {}).items()}
        if function is torch.Tensor.cuda:
            tensor, *rest = args
            index = kwargs.pop("device", rest[0] if rest else None)
            where = f"sim:{index}" if isinstance(index, int) else as_sim(index) or "sim"
            return tensor.to(where, non_blocking=kwargs.get("non_blocking", False))
        return function(*map(as_sim, args), **kwargs)


class Stand(ModuleType):
    """`torch` as the tests see it: with the simulated device's module as `torch.cuda`, and devices made of it."""

    def __init__(self) -> None:
        super().__init__("torch")
        names = {name: getattr(torch.sim, name) for name in dir(torch.sim) if not name.startswith("__")}
        self.cuda = SimpleNamespace(**names, amp=torch.cuda.amp)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def prepare(name: str) -> None:
    """Prepares the use of distributed_test: the group "gloo" or "nccl" has CPUs and simulated devices, and the
    tests' conditions find accelerators."""
    import torch.distributed.distributed_c10d as c10d
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    import atoll.sim  # noqa: F401

    c10d.Backend.backend_capability[name] = ["cpu", "sim"]
    stand = Stand()
    distributed_test.torch = stand
    common_distributed.torch = stand
    common_distributed.TEST_CUDA = True


def on_sim(body: Callable[[], None], rank: int) -> None:
    torch.sim.set_device(rank)
    with CudaMeansSim():
        body()
    torch.sim.synchronize()
