# SPDX-License-Identifier: Apache-2.0
"""Modules that a forked process finds already imported: the server of forking.py imports this module once.

Objects of these modules are excluded from Python's garbage collection: visiting them in each process, which makes
the system copy the pages that they are on, takes long."""

import contextlib
import gc
import os

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor  # noqa: F401

with contextlib.suppress(ImportError):  # tests of such models are skipped where it is missing
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

# Removes the folder of this module, which only the server needs; see forking.py.
_, _, rest = os.environ["PYTHONPATH"].partition(os.pathsep)
if rest:
    os.environ["PYTHONPATH"] = rest
else:
    del os.environ["PYTHONPATH"]

gc.collect()
gc.freeze()
