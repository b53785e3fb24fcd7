# SPDX-License-Identifier: Apache-2.0
"""PyTorch computes in the sandbox of a worker, with threads that start there and code that is generated there."""

import subprocess
import sys
import textwrap
from pathlib import Path

import testing

PROGRAM = """
    import os
    import sys
    import torch
    from torch.nn import functional
    sys.path.insert(0, sys.argv[1])
    from testing import testing

    def compute(dtype, rows):
        x = torch.linspace(-1, 1, 2 * 16 * rows * rows).reshape(2, 16, rows, rows).to(dtype)
        weight = torch.linspace(-0.1, 0.1, 32 * 16 * 9).reshape(32, 16, 3, 3).to(dtype)
        y = functional.relu(functional.conv2d(x, weight, padding=1))
        y = functional.conv2d(y, torch.ones(32, 1, 5, 5, dtype=dtype) / 25, groups=32)
        tokens = y.flatten(2).transpose(1, 2)
        tokens = functional.linear(tokens, torch.linspace(-1, 1, 64 * 32).reshape(64, 32).to(dtype))
        heads = tokens.reshape(2, -1, 4, 16).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads, heads, heads)
        return torch.exp(functional.layer_norm(attended, [16])).sum((0, 1, 2)) @ torch.ones(16, 8, dtype=dtype)

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    compute(torch.float32, 8)
    testing.infer_enter_sandbox(4 << 30)
    torch.set_num_threads(2)
    results = [compute(dtype, 40) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    assert all(bool(result.isfinite().all()) for result in results)
    assert torch.allclose(results[0].double(), results[1], rtol=1e-3)
    for refused in (lambda: open("/etc/passwd"), lambda: os.listdir("/"), os.fork):
        try:
            refused()
        except PermissionError:
            continue
        raise AssertionError("it was not refused")
    try:
        torch.empty(8 << 30, dtype=torch.uint8)
    except RuntimeError:
        os.write(1, b"computed")
    os._exit(0)
"""


# Proves I-10.
def test_pytorch_computes_in_the_sandbox() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(Path(testing.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("computed", "", 0)
