# SPDX-License-Identifier: Apache-2.0
"""`atoll.DataLoader` in a training loop of Hugging Face accelerate."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from atoll.adapters.reducing import reducing
from atoll.loading import loader


class DataLoader(loader.DataLoader):
    """Batches for a loop of accelerate. `model` is what `accelerator.prepare` returned; other arguments are those of
    atoll.DataLoader.

    Batches are on the accelerator's device. `accelerator.prepare` leaves the loader as it is: it is divided already.
    Prepared optimizers and schedulers do nothing while a step has parts left (`micro_batch`), so the loop calls them
    after each batch, as usual. A scheduler goes on once per step of all ranks, of which an epoch has len(loader), not
    once per rank.

    Raises ValueError for accelerate's own accumulation, which divides losses by a fixed number: `micro_batch`
    accumulates here. For the same reason the loop must not use `accelerator.accumulate` with it."""

    def __init__(self, accelerator: Any, dataset: Any, global_batch: int, *, model: nn.Module, **options: Any) -> None:
        if accelerator.gradient_accumulation_steps != 1:
            raise ValueError(
                f"Accelerator(gradient_accumulation_steps={accelerator.gradient_accumulation_steps}) divides each loss "
                "by that number: leave it at 1 and give the loader micro_batch, the most samples of one forward pass"
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
                    scheduler.split_batches = True  # accelerate's word for: a batch is one step of all ranks
                is_last = self.step_complete
                state._set_sync_gradients(is_last)
                yield send_to_device(batch, accelerator.device) if accelerator.device_placement else batch
                if not is_last and state.sync_gradients:
                    raise RuntimeError(
                        "accelerator.accumulate called the optimizer in the middle of a step: micro_batch accumulates "
                        "without it"
                    )
        finally:
            state._set_sync_gradients(True)
