# SPDX-License-Identifier: Apache-2.0
"""`atoll.DataLoader` in a training loop of Hugging Face accelerate."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from atoll.adapters.reducing import reducing
from atoll.loading import loader

__all__ = ["DataLoader"]


class DataLoader(loader.DataLoader):
    """Batches for a training loop of accelerate. `model` is what `accelerator.prepare` returned; the other arguments
    are those of atoll.DataLoader.

    Batches are on the accelerator's device. `accelerator.prepare` leaves the loader as it is, because it is already
    divided. Prepared optimizers and schedulers do nothing until the last part of a step (`micro_batch`), so the loop
    calls them after each batch, as usual. A scheduler advances once per global step, of which an epoch has
    len(loader), not once per rank.

    Raises ValueError for accelerate's own gradient accumulation, which divides losses by a fixed number; use
    `micro_batch` instead. For the same reason the loop must not use `accelerator.accumulate`."""

    def __init__(self, accelerator: Any, dataset: Any, global_batch: int, *, model: nn.Module, **options: Any) -> None:
        if accelerator.gradient_accumulation_steps != 1:
            raise ValueError(
                f"Accelerator(gradient_accumulation_steps={accelerator.gradient_accumulation_steps}) divides each loss "
                "by that number: leave it at 1 and pass the loader micro_batch, the maximum number of samples per "
                "forward pass"
            )
        self._accelerator = accelerator
        super().__init__(dataset, global_batch, model=reducing(model, "accelerate"), **options)

    def __iter__(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device

        accelerator = self._accelerator
        state = accelerator.gradient_state
        try:
            for batch in super().__iter__():
                for scheduler in accelerator._schedulers:
                    scheduler.split_batches = True  # in accelerate's terms: a batch is one step of all ranks
                is_last = self.step_complete
                state._set_sync_gradients(is_last)
                yield send_to_device(batch, accelerator.device) if accelerator.device_placement else batch
                if not is_last and state.sync_gradients:
                    raise RuntimeError(
                        "accelerator.accumulate called the optimizer in the middle of a step: remove it, micro_batch "
                        "accumulates by itself"
                    )
        finally:
            state._set_sync_gradients(True)
