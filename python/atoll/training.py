# SPDX-License-Identifier: Apache-2.0
"""Training with uneven batches, in detail: settings of atoll.DataLoader, batch normalisation over all ranks, compressed
gradients, comparison of replicas, the steps of a collective, and KAITIAN's sampler."""

from typing import TYPE_CHECKING

from atoll._lazy import attributes_from

if TYPE_CHECKING:
    from atoll.backend import print_schedule
    from atoll.loading.loader import DataLoader
    from atoll.loading.sampler import BatchSampler
    from atoll.loading.settings import Settings
    from atoll.packing.gradients import CompressedGradients, compress_gradients
    from atoll.recovering.elastic_trainer import ElasticTrainer
    from atoll.saving.checkpointer import Checkpointer
    from atoll.watching.options import Watch
    from atoll.weighting.batch_norm import SyncBatchNorm, convert_batch_norm, merge_batch_norm
    from atoll.weighting.replicas import align_replicas, replica_difference

_WHERE = {
    "BatchSampler": "atoll.loading.sampler",
    "Checkpointer": "atoll.saving.checkpointer",
    "CompressedGradients": "atoll.packing.gradients",
    "DataLoader": "atoll.loading.loader",
    "ElasticTrainer": "atoll.recovering.elastic_trainer",
    "Settings": "atoll.loading.settings",
    "SyncBatchNorm": "atoll.weighting.batch_norm",
    "Watch": "atoll.watching.options",
    "align_replicas": "atoll.weighting.replicas",
    "compress_gradients": "atoll.packing.gradients",
    "convert_batch_norm": "atoll.weighting.batch_norm",
    "merge_batch_norm": "atoll.weighting.batch_norm",
    "print_schedule": "atoll.backend",
    "replica_difference": "atoll.weighting.replicas",
}
__all__ = [
    "BatchSampler", "Checkpointer", "CompressedGradients", "DataLoader", "ElasticTrainer", "Settings", "SyncBatchNorm",
    "Watch", "align_replicas", "compress_gradients", "convert_batch_norm", "merge_batch_norm", "print_schedule",
    "replica_difference",
]  # fmt: skip
__getattr__, __dir__ = attributes_from(_WHERE, __name__)
