# SPDX-License-Identifier: Apache-2.0
"""PyTorch's C++ interface changes between releases: the glue works with the release that it was compiled against."""

from importlib.metadata import version

FROM_SOURCE = "pip install ."
"""The command to run in the source folder."""


def mismatch(built_for: str, found: str) -> str | None:
    """Returns what is wrong and what to do, or None if the releases agree. Ignores local suffixes (+cpu, +cu130)."""
    release = found.partition("+")[0]
    if release == built_for:
        return None
    return (
        f"atoll was built for torch {built_for}, found {found}: pip install torch=={built_for}, "
        f"or rebuild atoll in its source folder: {FROM_SOURCE}"
    )


def torch_problem() -> str | None:
    """Returns why the installed torch does not fit this build of Atoll, or None. Does not import torch."""
    from atoll._build_info import TORCH_VERSION

    return mismatch(TORCH_VERSION, version("torch"))


def require_matching_torch() -> None:
    """Raises ImportError if the installed torch does not fit. Called before atoll._C is loaded, which would fail with
    undefined symbols, or worse."""
    problem = torch_problem()
    if problem:
        raise ImportError(problem)
