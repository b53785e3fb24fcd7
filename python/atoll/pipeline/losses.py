# SPDX-License-Identifier: Apache-2.0
"""Losses as sums over elements, which can be divided into micro-batches and pipelines without changing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

IGNORED = -100


def next_token_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the loss of transformers' language models, each token from earlier ones, as a sum in float32 or wider."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    scores = logits[:, :-1].reshape(-1, logits.shape[-1])
    return functional.cross_entropy(scores, labels[:, 1:].reshape(-1), ignore_index=IGNORED, reduction="sum")


def next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """Returns the number of tokens in that sum."""
    return (labels[:, 1:] != IGNORED).sum()


def samples(labels: torch.Tensor) -> int:
    return int(labels.shape[0])


@dataclass(frozen=True)
class Loss:
    """A loss. A step's is the sum over its elements divided by their number, over all micro-batches and pipelines."""

    total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = next_token_sum
    """Returns the sum over the elements of a micro-batch, from the model's output and the labels."""
    elements: Callable[[torch.Tensor], torch.Tensor | int] = next_tokens
    """Returns the number of elements of labels."""


def loss_of(given: Loss | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None) -> Loss:
    """Returns the loss. A plain function is a sum over samples; None is the language model's loss."""
    if given is None:
        return Loss()
    return given if isinstance(given, Loss) else Loss(given, samples)
