# SPDX-License-Identifier: Apache-2.0
"""Weighted gradients for FSDP2: scales each layer's gradients before they are reduced and scattered."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from atoll.weighting.batch_part import Part
from atoll.weighting.replicas import sharded_layers
from atoll.weighting.weights import Weights


class FsdpWeights(Weights):
    """Weights for FSDP2. Every part is reduced separately. Ranks gather parameters in each forward pass, so all need
    the same number of parts."""

    parts_must_match = True

    def __init__(self, model: nn.Module) -> None:
        if not (sharded := sharded_layers(model)):
            raise TypeError("fully_shard has not wrapped any parameters of the model")
        super().__init__(_group_of(sharded[0][1].mesh_info.mesh))
        model.register_forward_pre_hook(self._before_forward)
        self._groups = [weakref.ref(group) for _, group in sharded]  # they refer to the model, which owns these weights
        for layer, group in sharded:
            shards = getattr(group.mesh_info, "shard_mesh_size", 1)  # pure replicas have none
            layer.set_custom_reduce_scatter(_Scaled(group._reduce_scatter_comm, self, shards))

    def begin(self, part: Part) -> None:
        """Starts a part. Raises RuntimeError if gradients are waiting to be reduced, because they would get the share
        of a later part, and if FSDP divides gradients by a number of the program's own."""
        groups = [group for known in self._groups if (group := known()) is not None]
        if not all(group.reduce_grads for group in groups):
            raise RuntimeError(
                "set_requires_gradient_sync(False): gradients that are not reduced in their own step would count as "
                "those of a later one; raise the loader's global_batch, which micro_batch divides into passes"
            )
        if any(group.gradient_divide_factor not in (None, self.group.size()) for group in groups):
            raise RuntimeError(
                "set_gradient_divide_factor: the weights of batches replace this factor, so gradients would get a "
                "wrong size; remove it"
            )
        super().begin(part)

    def scaled(self, gradients: torch.Tensor) -> None:
        self.scale(gradients, self.group.size())  # FSDP divides by the number of ranks
        if self.current().is_last:
            self.when_ready()


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    """Returns the group of all ranks that contribute to the gradients, including replicas."""
    if mesh.ndim == 1:
        return mesh.get_group(0)
    if mesh.size() == dist.get_world_size():
        return dist.distributed_c10d._get_default_group()
    return mesh._flatten().get_group()


class _Scaled(ReduceScatter):
    """Scales the input of a reduce-scatter. FSDP allocates memory for the gradients, fills it, and allocates memory for
    the result. If one rank holds a whole shard, it then copies without a reduce-scatter, so that the allocation of the
    result is its last call."""

    def __init__(self, inner: ReduceScatter, weights: FsdpWeights, shards: int) -> None:
        self._inner, self._weights, self._shards = inner, weights, shards
        self._gradients: torch.Tensor | None = None

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        memory = self._inner.allocate(size, dtype=dtype, device=device)
        if self._shards == 1:
            gradients, self._gradients = self._gradients, memory
            if gradients is not None:
                self._weights.scaled(gradients)
                self._gradients = None
        return memory

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:  # fmt: skip
        self._weights.scaled(input_tensor)
        return self._inner(output_tensor, input_tensor, group, op, async_op)
