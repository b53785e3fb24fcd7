# SPDX-License-Identifier: Apache-2.0
"""The schedule of one operation, as each rank would execute it."""

from typing import Any

import torch
import torch.distributed as dist

OPERATIONS = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter",
)  # fmt: skip
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


def elements(operation: str, size: int, dtype: str, ranks: int) -> int:
    """Returns the number of elements that fit in `size` bytes; a multiple of `ranks` if each rank has an equal part.
    Raises ValueError if it is 0."""
    item = getattr(torch, dtype).itemsize
    step = ranks if operation in ("reduce_scatter", "all_to_all") else 1
    count = int(size // item // step * step)
    if count == 0:
        raise ValueError(
            f"{size} bytes are too few for one {dtype} per rank ({ranks}): use --bytes {item * step} or more"
        )
    return count


def of_this_rank(group: dist.ProcessGroup, operation: str, count: int, dtype: str) -> dict[str, str]:
    """Returns the line that summarizes this rank's part, and all of its steps."""
    from atoll.backend import schedule_text

    text = schedule_text(group, operation, count, getattr(torch, dtype))
    return {"summary": text.splitlines()[1], "steps": text}


def section(operation: str, count: int, dtype: str, parts: list[dict[str, str]], steps_of: int) -> dict[str, Any]:
    return {
        "operation": operation,
        "dtype": dtype,
        "elements": count,
        "bytes": count * getattr(torch, dtype).itemsize,
        "summaries": [part["summary"] for part in parts],
        "steps_of": steps_of if steps_of >= 0 else None,
        "steps": parts[steps_of]["steps"] if steps_of >= 0 else None,
    }
