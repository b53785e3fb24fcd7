# SPDX-License-Identifier: Apache-2.0
"""Gradients of uneven batches that cross between islands as packed blocks."""

from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.weighting.weights import weights_of
from client_ranks import on_layouts
from support import device, later
from training import check_close, check_equal_bits, network
from uneven_training import random_shares, train_alone, train_together

STEPS = 40


@on_layouts("AB", later("AABB"), "aCb")
def test_uneven_batches_are_weighed(rank: int, size: int) -> None:
    """Compression is set up before or after the weights, with parts that accumulate."""
    alone = network()
    train_alone(alone, STEPS)
    for first in (True, False):
        for most_parts in (1, 3):
            model = DistributedDataParallel(network(place=device()), bucket_cap_mb=0.001)
            compressed = atoll.training.compress_gradients(model) if first else None
            weights = weights_of(model)
            compressed = compressed or atoll.training.compress_gradients(model)
            train_together(model, weights, rank, random_shares(size, STEPS, most_parts=most_parts))
            check_equal_bits(model)
            check_close(model.module, alone, 0.05)
            compressed.close()
