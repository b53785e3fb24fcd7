# SPDX-License-Identifier: Apache-2.0
"""One batch of a training that recovers, and the optimizers' progress on it."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from atoll.recovering.world import has_failed, is_of_group

if TYPE_CHECKING:
    from atoll.recovering.elastic_trainer import ElasticTrainer


class Applied:
    """Records which optimizers have stepped since begin(); one may step several times."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> None:
        self._count, self._device = len(optimizers), device
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)
        self.is_guarded = False
        self.begin()

    def begin(self) -> None:
        self._stepped: set[int] = set()
        self._is_stepping = False

    @property
    def whole(self) -> bool:
        """Whether all of them have, completely."""
        return len(self._stepped) == self._count and not self._is_stepping

    @property
    def torn(self) -> bool:
        """Whether only some have, or one was interrupted, so that parameters are between two steps."""
        return (bool(self._stepped) or self._is_stepping) and not self.whole

    def _before(self, *_: Any) -> None:
        if self.is_guarded and self._device.type != "cpu":
            # The host runs ahead of a device, on which gradients may turn out to be invalid.
            torch.accelerator.synchronize(self._device)
            if has_failed():
                raise torch.distributed.DistNetworkError("the group failed before the optimizer's step")
        self._is_stepping = True

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_stepping = False
        self._stepped.add(id(optimizer))


def restart_scalers(extra: Iterable[Any], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Makes GradScalers forget that gradients of an unfinished step were unscaled; their scales stay."""
    for scaler in extra:
        if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled() and scaler._scale is not None:  # used yet
            scaler.update(scaler.get_scale())
    for optimizer in optimizers:
        for name in ("grad_scale", "found_inf"):  # left by a fused step that raised
            vars(optimizer).pop(name, None)


class Step:
    """One batch, to be computed in `with step as batch:`. If ranks are lost in the meantime, the `with` block ends
    there, and the loop gets the same samples again, with other shares."""

    def __init__(self, owner: "ElasticTrainer", batch: Any, number: int, epoch: int) -> None:
        self._owner, self._batch = owner, batch
        self.number = number
        """The number of the step, counted from 0 over the whole training."""
        self.epoch = epoch
        self.is_done = False
        """Whether the step is complete: false until the `with` block has ended, for a batch that is not this rank's
        last one of the step, and for a batch that the loop will get again."""
        self.was_entered = False
        self.lost: str | None = None
        """Why the group is gone."""

    def __enter__(self) -> Any:
        self.was_entered = True
        return self._batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        is_last = self._owner.loader.step_complete
        if error is None:
            self.is_done = is_last
            return False
        if not self._owner.is_supervised or not is_of_group(error):
            return False
        self.lost = str(error)
        self.is_done = is_last and self._owner.applied.whole
        return True

    @property
    def is_last_part(self) -> bool:
        """Whether the batch is this rank's last one of the step, so that the optimizer runs after it."""
        return self._owner.loader.step_complete

    @property
    def weight(self) -> float:
        """The weight of the batch; see atoll.DataLoader."""
        return self._owner.loader.weight

    def mean(self, value: torch.Tensor | float) -> torch.Tensor:
        """Returns the mean over the whole step, like atoll.DataLoader.mean. Collective, so call it inside the `with`
        block, before the optimizer's step."""
        return self._owner.loader.mean(value)
