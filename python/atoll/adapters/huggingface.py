# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers with uneven, exactly weighted batches."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.adapters.reducing import reducing
from atoll.loading.loader import DataLoader

try:
    import transformers
except ImportError as error:
    raise ImportError("atoll.adapters.huggingface needs transformers: pip install transformers accelerate") from error

__all__ = ["Trainer"]
SHUFFLES = {"random": True, "sequential": False}


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A transformers.Trainer whose steps equal those of one process with the whole global batch.

    global_batch: samples per step of all ranks. Default: as with equal shares (per_device_train_batch_size times the
        number of ranks). uneven: other arguments of atoll.DataLoader (policy, micro_batch, settings, ...).

    A batch's loss is the mean over its labels that are not -100, as the Trainer itself counts, or over its samples if
    it has no labels; `uneven=dict(elements=...)` overrides this. That number is the `num_items_in_batch` of models and
    of compute_loss_func, and gradients are weighted by it, so a model that counts differently still trains as it would
    in one process. average_tokens_across_devices makes no difference. Logged losses are those of the whole step.

    Raises ValueError for settings that contradict this: gradient_accumulation_steps (use `micro_batch`),
    include_num_input_tokens_seen, and a train_sampling_strategy other than random and sequential."""

    def __init__(
        self, *arguments: Any, global_batch: int | None = None, uneven: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self._global_batch = global_batch or self.args.train_batch_size * self.args.world_size
        self._uneven = dict(uneven or {})
        self._steps: _Steps | None = None
        _check(self.args)
        self.add_callback(_EpochOfResumed(self))

    def get_train_dataloader(self) -> Any:
        """Returns the iterable of the training loop. Its batches come from an atoll.DataLoader, which is made once the
        model is wrapped."""
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset")
        self._steps = _Steps(self, self._loading())
        return self._steps

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        if self._steps is None:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        self._batches = epoch_iterator
        first = next(epoch_iterator, None)
        return ([] if first is None else [first]), None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Trains on all parts of this rank's share. The mean of the results of all ranks is the loss of the step."""
        if self._steps is None:
            stock: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
            return stock
        loss = self._part(model, inputs)
        while not self._steps.loader.step_complete:
            inputs = next(self._batches)
            self.current_flos += float(self.floating_point_ops(inputs))
            loss += self._part(model, inputs)
        return loss

    def _run_epoch(self, **of: Any) -> None:
        """Runs an epoch; the Trainer calls it with keywords. The Trainer would skip the first steps of a resumed epoch
        in its own way; here the loader starts after them."""
        done = of["steps_trained_in_current_epoch"]
        if self._steps is not None and done and of["resume_from_checkpoint"] and of["epoch"] == of["epochs_trained"]:
            self._steps.skip(of["epoch"], done, self.state.global_step)
            of["num_update_steps_per_epoch"] -= done
            of["steps_trained_in_current_epoch"] = 0
        super()._run_epoch(**of)

    def _part(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        assert self._steps is not None
        loader = self._steps.loader
        items = None
        if "labels" in inputs and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None):
            # compute_loss multiplies by the number of ranks, and expects the number of items of all ranks.
            ranks = self.args.world_size if self.args.average_tokens_across_devices else 1
            items = torch.tensor(max(loader.elements, 1) * ranks, device=self.args.device)
        loss = super().training_step(model, inputs, items)
        weight = loader.weight
        return loss * (weight * self.args.world_size) if weight else torch.zeros_like(loss)

    def _loading(self) -> dict[str, Any]:
        """Returns the arguments of atoll.DataLoader, derived from the Trainer's own."""
        args, dataset, collate = self.args, self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        return {
            "dataset": dataset,
            "global_batch": self._global_batch,
            "elements": self._elements,
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "shuffle": SHUFFLES[args.train_sampling_strategy],
            "drop_last": args.dataloader_drop_last,
            "collate_fn": partial(_as_dict, collate),
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory,
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            **self._uneven,
        }

    def _elements(self, batch: dict[str, Any]) -> int:
        labels = batch.get("shift_labels", batch.get("labels"))
        if not isinstance(labels, torch.Tensor):
            sizes = [len(value) for value in batch.values() if isinstance(value, torch.Tensor)]
            return sizes[0]
        if self._loss_shifts_labels and "shift_labels" not in batch:
            labels = labels[..., 1:]
        return int((labels != -100).sum())


def _check(args: Any) -> None:
    if args.gradient_accumulation_steps != 1:
        raise ValueError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}: leave it at 1; global_batch is the whole "
            "step, and uneven=dict(micro_batch=...) the maximum number of samples per forward pass"
        )
    if args.include_num_input_tokens_seen != "no":
        raise ValueError("include_num_input_tokens_seen is not supported with uneven batches: leave it at 'no'")
    if args.train_sampling_strategy not in SHUFFLES:
        raise ValueError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} is not supported with uneven batches: use one "
            f"of {sorted(SHUFFLES)}, or uneven=dict(sampler=...)"
        )


class _Steps:
    """Yields the first batch of each step of an epoch; the Trainer's training_step takes the other batches."""

    def __init__(self, trainer: Trainer, loading: dict[str, Any]) -> None:
        self._trainer, self._loading = trainer, loading
        self.dataset = loading["dataset"]
        self._loader: DataLoader | None = None
        self._running: Iterator[Any] = iter(())
        self.epoch = 0
        self.skipped = (-1, 0)
        """The epoch that was resumed in its middle, and how many of its steps are skipped."""

    @property
    def loader(self) -> DataLoader:
        """The loader, made at the first iteration, because only then has the Trainer wrapped the model."""
        if self._loader is None:
            model = reducing(self._trainer.model_wrapped, "the Trainer")
            self._loader = DataLoader(model=model, **self._loading)
            if len(self._loader) != len(self):
                raise ValueError(f"an epoch has {len(self._loader)} steps, but the Trainer expected {len(self)}")
        return self._loader

    def skip(self, epoch: int, steps: int, of_training: int) -> None:
        """Starts the epoch after `steps` of its steps; `of_training` counts the steps of all epochs."""
        where = {"epoch": epoch, "position": steps * self._loading["global_batch"], "steps": of_training}
        self.loader.load_state_dict(self.loader.state_dict() | where)
        self.skipped = (epoch, steps)

    def __len__(self) -> int:
        given = self._loading
        if given.get("samples") is not None:
            samples: int = given["samples"]
        else:
            samples = len(given["sampler"] if given.get("sampler") is not None else self.dataset)
        global_batch: int = given["global_batch"]
        whole, rest = divmod(samples, global_batch)
        return whole + (1 if rest and not given["drop_last"] else 0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        next(self._running, None)  # an epoch that the Trainer has left after its last step ends here
        self.loader.set_epoch(self.epoch)
        self._running = iter(self.loader)
        return self._running


class _EpochOfResumed(transformers.TrainerCallback):  # type: ignore[misc]
    """Corrects the step count of a resumed epoch, which the Trainer counts from where it resumes."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        steps = self._trainer._steps
        if steps is not None and steps.skipped[0] == steps.epoch:
            state.epoch += steps.skipped[1] / len(steps)


def _as_dict(collate: Any, samples: list[Any]) -> Any:
    """Collates samples to a plain dictionary, which the profile's forward pass takes as keywords."""
    batch = collate(samples)
    return dict(batch) if isinstance(batch, Mapping) else batch
