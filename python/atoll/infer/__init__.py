# SPDX-License-Identifier: Apache-2.0
"""Inference split between machines. Models are sent as graphs with weights, never as code."""

from typing import TYPE_CHECKING

from atoll._lazy import attributes_from

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
__getattr__, __dir__ = attributes_from(_WHERE, __name__)
