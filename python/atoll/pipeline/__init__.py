# SPDX-License-Identifier: Apache-2.0
#
# The promises of pipelines, each proven by the tests that docs/promises.md names:
# E-8: A pipeline gives the stock model's values for any cut of it, bit for bit in the forward pass.
"""Trains a model over unlike devices as a pipeline: stock models are divided into stages by measured time, and trained
with the schedules of torch.distributed.pipelining.

    pipe = atoll.pipeline.Pipeline(lambda: LlamaForCausalLM(config), example, micro_batches=8)
    optimizer = torch.optim.AdamW(pipe.parameters())
    loss = pipe.step(input_ids, labels)
    pipe.clip_grad_norm_(1.0)
    optimizer.step()"""

from atoll.packing.boundary import BoundaryCodec, pack_boundaries
from atoll.pipeline.initial import initialise
from atoll.pipeline.items import Call, Item, Parts
from atoll.pipeline.losses import Loss
from atoll.pipeline.pipeline import Pipeline
from atoll.pipeline.plan import Plan
from atoll.pipeline.settings import Settings

__all__ = [
    "BoundaryCodec", "Call", "Item", "Loss", "Parts", "Pipeline", "Plan", "Settings", "initialise", "pack_boundaries",
]  # fmt: skip
