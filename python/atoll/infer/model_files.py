# SPDX-License-Identifier: Apache-2.0
"""A session's model as files: those of a bundle's folder, or one without a name."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO, Any

from atoll.infer import graph as graphs
from atoll.infer import weights as weight_files
from atoll.infer.bundle import GRAPH, WEIGHTS, Bundle

_CHUNK = 1 << 24  # between two checks for signals


class ModelFiles:
    """The graph's text, the open file of weights, and the hash of both. As a context manager it closes the file."""

    def __init__(self, graph: bytes, weights: IO[bytes], hash: bytes) -> None:
        self.graph = graph
        self.weights = weights
        self.hash = hash

    @staticmethod
    def of_folder(folder: Path) -> "ModelFiles":
        """Opens the files of a bundle that was saved in or loaded from `folder`, whose name is the hash."""
        return ModelFiles(
            (folder / GRAPH).read_bytes(), (folder / WEIGHTS).open("rb"), bytes.fromhex(folder.resolve().name)
        )

    @staticmethod
    def unnamed(bundle: Bundle) -> "ModelFiles":
        """Writes the current weights to an unnamed file in the temporary folder, which disappears with the process,
        however that ends. Raises OSError, which names the folder, if it cannot be written."""
        bundle.refuse_changes()
        graph = graphs.to_text(bundle.graph)
        digest = hashlib.sha256(graph)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(tempfile.TemporaryFile(prefix="atoll-session-"))
                for piece in weight_files.pieces(bundle.weights):
                    for begin in range(0, len(piece), _CHUNK):
                        part = memoryview(piece)[begin : begin + _CHUNK]
                        digest.update(part)
                        file.write(part)
                file.flush()
            except OSError as error:
                megabytes = round(weight_files.total_bytes(bundle.weights) / 1e6)
                raise OSError(
                    error.errno,
                    f"the weights ({megabytes} MB) cannot be written to {tempfile.gettempdir()}: "
                    f"{os.strerror(error.errno or 0)}: free some space there, or set TMPDIR to another folder",
                ) from None
            stack.pop_all()
        return ModelFiles(graph, file, digest.digest())

    def __enter__(self) -> "ModelFiles":
        return self

    def __exit__(self, *_: Any) -> None:
        self.weights.close()
