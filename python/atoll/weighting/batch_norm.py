# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over all ranks of a step, on any device, with every sample counted once."""

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from atoll._newer_torch import all_gather_single

if TYPE_CHECKING:
    from atoll.weighting.weights import Weights


class SyncBatchNorm(_BatchNorm):
    """A torch.nn.SyncBatchNorm that also works on CPUs, and for ranks with different weights of their losses.

    Statistics are those of the samples of all ranks; a part without samples, or without elements where the loader
    counts elements, contributes none. Inputs have shape
    (samples, channels, ...) on any device, float32 or float64 (16-bit types are normalised in float32). In a model that
    is passed to `atoll.DataLoader`, gradients are exactly those of one process with all samples."""

    weights: "Weights | None" = None
    is_alone = False
    """Whether it ignores other ranks and uses only its own samples, as when a device is measured."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the weights, because copies and saved modules take no part in steps."""
        return {name: value for name, value in self.__dict__.items() if name != "weights"}

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected (samples, channels, ...), got {input.dim()} dimensions")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return super().forward(input)
        part = self.weights.part if self.weights is not None else None
        own = 1.0 if part is None else float(part.own)
        group = self.weights.group if self.weights is not None else dist.group.WORLD
        if self.is_alone:
            own, group = 1.0, None
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        normalised, mean, variance, count = _Normalise.apply(values, self.eps, own, group)  # type: ignore[no-untyped-call]
        self._keep_running(mean, variance, float(count))
        shape = (1, -1) + (1,) * (input.dim() - 2)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return cast(torch.Tensor, normalised.to(input.dtype))

    @torch.no_grad()
    def _keep_running(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if not count or not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """Normalises to zero mean and unit variance per channel. Means and sums of squares of ranks are merged pairwise as
    in Chan, Golub and LeVeque (1983), which keeps their precision.

    The backward pass must sum over samples of all ranks, whose losses have different weights: each rank's gradient is
    multiplied by its number of elements, and the result divided by it. Without a group only this rank is used."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, eps: float, own: float, group: dist.ProcessGroup | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        dims = [dim for dim in range(values.dim()) if dim != 1]
        shape = (1, -1) + (1,) * (values.dim() - 2)
        counts = own > 0 and values.numel() > 0
        count = values.numel() // values.size(1) if counts else 0
        local = values.new_zeros(2 * values.size(1) + 1)
        if counts:
            mean = values.mean(dims)
            local = torch.cat([mean, (values - mean.view(shape)).square().sum(dims), values.new_tensor([float(count)])])
        gathered = local
        if group is not None:
            gathered = values.new_empty(dist.get_world_size(group) * local.numel())
            all_gather_single(gathered, local, group=group)
        mean, squares, total = _merged(gathered.view(-1, local.numel()))
        variance = squares / total.clamp(min=1)
        inverse = torch.rsqrt(variance + eps)
        normalised = (values - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normalised, inverse, total)
        ctx.own, ctx.group, ctx.dims, ctx.shape, ctx.counts = own, group, dims, shape, counts
        ctx.mark_non_differentiable(mean, variance, total)
        return normalised, mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        gradient = gradients[0]
        normalised, inverse, total = ctx.saved_tensors
        sums = gradient.new_zeros(2 * gradient.size(1))
        if ctx.counts:
            sums = torch.cat([gradient.sum(ctx.dims), (gradient * normalised).sum(ctx.dims)]) * ctx.own
        if ctx.group is not None:
            dist.all_reduce(sums, group=ctx.group)
        if not ctx.counts:
            return torch.zeros_like(gradient), None, None, None
        of_gradient, of_product = (sums / (total * ctx.own)).chunk(2)
        inner = gradient - of_gradient.view(ctx.shape) - normalised * of_product.view(ctx.shape)
        return inner * inverse.view(ctx.shape), None, None, None


def _merged(of_ranks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns mean, sum of squared deviations, and count, from a row [mean..., squares..., count] per rank."""
    channels = (of_ranks.size(1) - 1) // 2
    means, squares, counts = of_ranks[:, :channels], of_ranks[:, channels:-1], of_ranks[:, -1:]
    total = counts.sum()
    mean = (means * counts).sum(0) / total.clamp(min=1)
    spread = ((means - mean).square() * counts).sum(0)
    return mean, squares.sum(0) + spread, total


def convert_batch_norm(module: nn.Module) -> nn.Module:
    """Returns the module with every BatchNorm, including torch.nn.SyncBatchNorm, replaced by SyncBatchNorm; parameters
    and statistics are kept. Call it before the model is wrapped."""
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        twin = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        if module.affine:
            twin.weight, twin.bias = module.weight, module.bias
        twin.running_mean, twin.running_var = module.running_mean, module.running_var
        twin.num_batches_tracked = module.num_batches_tracked
        twin.train(module.training)
        return twin
    for name, child in module.named_children():
        module.add_module(name, convert_batch_norm(child))
    return module


@torch.no_grad()
def merge_batch_norm(model: nn.Module, samples: float, group: dist.ProcessGroup | None = None) -> None:
    """Makes the running statistics of the model's own BatchNorm layers equal on all ranks, as those of all their
    samples: means and second moments are averaged with the weight `samples`, the number of samples that this rank has
    seen. Call it on all ranks, before a checkpoint or an evaluation. Ranks without samples do not count; if no rank has
    any, nothing changes."""
    statistics = [
        (layer.running_mean, layer.running_var) for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None
    ]  # fmt: skip
    if not statistics:
        return
    moments = [moment for mean, variance in statistics for moment in (mean, variance + mean.square())]
    packed = torch.cat([moment.double().reshape(-1).cpu() for moment in moments] + [torch.ones(1, dtype=torch.float64)])
    packed = packed * samples if samples > 0 else torch.zeros_like(packed)
    dist.all_reduce(packed, group=group)
    if packed[-1] == 0:
        return
    merged = torch.split(packed[:-1] / packed[-1], [moment.numel() for moment in moments])
    for (own_mean, own_variance), mean, square in zip(statistics, merged[::2], merged[1::2], strict=True):
        own_mean.copy_(mean)
        own_variance.copy_(square - mean.square())
