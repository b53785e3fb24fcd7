# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.distributed under the names of newer releases, which older ones call differently."""

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
