# SPDX-License-Identifier: Apache-2.0
"""Inference split between machines. Models are sent as graphs with weights, never as code."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.infer.attached import attach, detach
    from atoll.infer.bundle import Bundle
    from atoll.infer.errors import BundleError, ExportError, InputError, ModelChangedError, RefusedError
    from atoll.infer.packing import PackingLoss, packing_loss
    from atoll.infer.reference import run_graph
    from atoll.infer.session import Session
    from atoll.infer.tracing import capture

_WHERE = {
    "Bundle": "atoll.infer.bundle",
    "BundleError": "atoll.infer.errors",
    "ExportError": "atoll.infer.errors",
    "InputError": "atoll.infer.errors",
    "ModelChangedError": "atoll.infer.errors",
    "PackingLoss": "atoll.infer.packing",
    "RefusedError": "atoll.infer.errors",
    "Session": "atoll.infer.session",
    "attach": "atoll.infer.attached",
    "capture": "atoll.infer.tracing",
    "detach": "atoll.infer.attached",
    "packing_loss": "atoll.infer.packing",
    "run_graph": "atoll.infer.reference",
}
__all__ = [
    "Bundle", "BundleError", "ExportError", "InputError", "ModelChangedError", "PackingLoss", "RefusedError", "Session",
    "attach", "capture", "detach", "packing_loss", "run_graph",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'atoll.infer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
