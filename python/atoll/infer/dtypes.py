# SPDX-License-Identifier: Apache-2.0
"""The dtypes that a bundle may hold, by their names in a graph and in a safetensors file."""

import torch

IN_FILES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def name_of(dtype: torch.dtype) -> str:
    """Returns a name such as "float32". Every dtype has one, including dtypes that a bundle cannot hold."""
    return str(dtype).removeprefix("torch.")


BY_NAME = {name_of(dtype): dtype for dtype in IN_FILES}
FROM_FILES = {name: dtype for dtype, name in IN_FILES.items()}
CHOICE = ", ".join(BY_NAME)
