# SPDX-License-Identifier: Apache-2.0
"""Ends worker processes of a data loader with their rank."""

import os
import select
import threading
from collections.abc import Callable


class EndsWithRank:
    """The `worker_init_fn` of a torch.utils.data.DataLoader. Its worker ends as soon as the process that made this
    object ends, even if that is killed, and whatever the worker is doing. PyTorch's workers check only between two
    batches, every 5 s; they still do so if the system cannot report the end of a process."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        """`then`: the user's own worker_init_fn."""
        self._rank, self._then = os.getpid(), then

    def __call__(self, worker: int) -> None:
        try:
            handle = os.pidfd_open(self._rank)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            pass
        else:
            threading.Thread(target=_end_after, args=(handle,), name="atoll-rank", daemon=True).start()
        if self._then is not None:
            self._then(worker)


def _end_after(process: int) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os._exit(1)
