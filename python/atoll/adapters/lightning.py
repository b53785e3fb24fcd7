# SPDX-License-Identifier: Apache-2.0
"""`atoll.DataLoader` in a Lightning training loop."""

from collections.abc import Iterator
from typing import Any

from atoll.adapters.reducing import reducing
from atoll.loading import loader

__all__ = ["DataLoader", "FabricDataLoader"]


class DataLoader(loader.DataLoader):
    """The loader to return from `train_dataloader` of a LightningModule or a LightningDataModule; by then the strategy
    has wrapped the model. `trainer` is the Trainer (`self.trainer`); the other arguments are those of atoll.DataLoader.

    Lightning sets the epoch, and saves and loads the loader's state with its checkpoints. It calls the optimizer after
    each batch, so a step is one batch of each rank: raises ValueError for `micro_batch`, and for
    `accumulate_grad_batches`, which divides losses by a fixed number."""

    def __init__(self, trainer: Any, dataset: Any, global_batch: int, **options: Any) -> None:
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(
                f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}) divides each loss by that number, "
                "whatever the batch sizes: leave it at 1; global_batch is the whole step"
            )
        if options.get("micro_batch") is not None:
            raise ValueError(
                "micro_batch: Lightning calls the optimizer after each batch, so a share cannot be split; use "
                "max_batch, the maximum number of samples that fit into this rank's memory"
            )
        self._trainer = trainer
        super().__init__(dataset, global_batch, model=reducing(trainer.strategy.model, "Lightning"), **options)

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self._trainer.current_epoch)
        return super().__iter__()


class FabricDataLoader(loader.DataLoader):
    """The same for your own loop with Lightning Fabric: `model` is what `fabric.setup` returned; the other arguments
    are those of atoll.DataLoader. The loop sets the epoch (`set_epoch`) and passes each loss to `fabric.backward` as it
    is."""

    def __init__(self, model: Any, dataset: Any, global_batch: int, **options: Any) -> None:
        wrapped = reducing(getattr(model, "_forward_module", model), "Fabric")
        super().__init__(dataset, global_batch, model=wrapped, **options)
