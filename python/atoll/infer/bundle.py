# SPDX-License-Identifier: Apache-2.0
"""A captured model on disk: a folder named by the hash of its contents."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from atoll._build_info import VERSION as ATOLL_VERSION
from atoll.infer import graph as graphs
from atoll.infer import weights as weight_files
from atoll.infer.dtypes import name_of
from atoll.infer.errors import BundleError, InputError
from atoll.infer.graph import Graph
from atoll.infer.inputs import Inputs, check_tensors
from atoll.infer.structure import Structure

if TYPE_CHECKING:
    from atoll.infer.placement import Place
    from atoll.infer.watching import Watch

GRAPH, WEIGHTS, META = "graph.json", "weights.safetensors", "meta.json"
MAX_GRAPH_BYTES = 1 << 24
_CHUNK = 1 << 24  # between two checks for signals


@dataclass(eq=False, repr=False)
class Bundle:
    """A graph of operators, its weights by name, and the structures of its inputs and its output. `sources` gives for
    each weight of a captured module the parameters, buffers and constants that it comes from: one, or several if the
    weight was computed from them. A loaded bundle has no sources."""

    graph: Graph
    weights: dict[str, torch.Tensor]
    inputs: Inputs
    output: Structure
    watch: "Watch | None" = None  # of the module that it was captured from, and so is the place
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    place: "Place | None" = None

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of graph.json followed by weights.safetensors, in hexadecimal; equal for equal models."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        return digest.hexdigest()

    def check_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Returns the tensors of an inference's arguments, in the graph's order. Raises InputError if they differ from
        the example in structure, constants, shapes or dtypes, because a graph is made for one of each; also if the
        graph's operators would compute in another default dtype."""
        if torch.get_default_dtype() is not torch.float32 and self._default_dtype_node is not None:
            raise InputError(
                f"the default dtype is {name_of(torch.get_default_dtype())}, but {self._default_dtype_node} of the "
                f"graph computes in float32 by default: torch.set_default_dtype(torch.float32)"
            )
        tensors = self.inputs.tensors_of(args, kwargs or {})
        check_tensors(tensors, graphs.of_inputs(self.graph), self.inputs.names())
        return tensors

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the bundle into a new folder in `folder`, named by its hash, and returns its path. It appears complete
        or not at all, also after a loss of power. An existing one is read: it is left as it is, or its files are
        replaced if they are damaged. Raises OSError if it cannot be written, and ModelChangedError if the module has
        changed since it was captured."""
        self.refuse_changes()
        target = Path(folder) / self.hash
        if _is_whole(target):
            return target
        part = Path(folder) / f".{self.hash[:16]}.{secrets.token_hex(8)}.part"
        try:
            part.mkdir(parents=True)
            _write(part / GRAPH, [graphs.to_text(self.graph)])
            _write(part / WEIGHTS, weight_files.pieces(self.weights))
            _write(part / META, [f"{json.dumps(self.facts(), indent=1)}\n".encode()])
            _sync(part)
            try:
                part.rename(target)
            except OSError:  # its files are damaged, or another one was faster and has written the same
                for name in (GRAPH, WEIGHTS, META):
                    (part / name).replace(target / name)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return target

    @staticmethod
    def load(path: str | os.PathLike[str], classes: Iterable[type] = ()) -> "Bundle":
        """Loads the bundle in the folder `path`, whose name is the bundle's hash; weights are mapped, not read. Raises
        BundleError if anything in it differs from what was saved. `classes` are those that inputs and output hold,
        such as a dataclass that the model returns: none is imported by name."""
        folder, known = Path(path), list(classes)
        text = _read(folder / GRAPH, MAX_GRAPH_BYTES)
        mapped = weight_files.map_file(folder / WEIGHTS)
        digest = hashlib.sha256(text)
        for begin in range(0, len(mapped), _CHUNK):
            digest.update(memoryview(mapped)[begin : begin + _CHUNK])
        if digest.hexdigest() != folder.resolve().name:
            raise BundleError(
                f"{folder} holds a model with the hash {digest.hexdigest()}, but the hash must be the folder's name: "
                f"it was renamed, or its files have changed"
            )
        graph = graphs.from_text(text)
        wanted = graphs.of_weights(graph)
        weights = weight_files.tensors_in(folder / WEIGHTS, mapped, wanted)
        _check_weights(folder, weights, wanted)
        inputs = Inputs.from_json(graph["structure"]["input"], known)
        output = Structure.from_json(graph["structure"]["output"], known)
        if len(inputs.names()) != len(graph["inputs"]) or len(output.paths("")) != len(graph["outputs"]):
            raise BundleError(f"{folder}: the structures of inputs and output do not fit the graph")
        _check_meta(folder)
        return Bundle(graph, weights, inputs, output)

    def of_file(self, file: IO[bytes]) -> "Bundle":
        """Returns the bundle with the mapped weights of an open file, as written by `save`, instead of the module's."""
        mapped = weight_files.map_open(file)
        weights = weight_files.tensors_in(Path(WEIGHTS), mapped, graphs.of_weights(self.graph))
        return Bundle(self.graph, weights, self.inputs, self.output, sources=self.sources, place=self.place)

    def refuse_changes(self) -> None:
        """Raises ModelChangedError if the weights, layers or hooks of the captured module have changed."""
        if self.watch is not None:
            self.watch.refuse_changes()

    def facts(self) -> dict[str, Any]:
        """Returns a summary of the bundle for people, as written to meta.json; programs do not need it."""
        inputs = zip(self.inputs.names(), graphs.of_inputs(self.graph), strict=True)
        outputs = zip(self.output.paths("output"), graphs.of_outputs(self.graph), strict=True)
        return {
            "atoll_bundle": graphs.VERSION,
            "atoll": ATOLL_VERSION,
            "torch": torch.__version__.partition("+")[0],
            "inputs": [{"name": name, **like} for name, like in inputs],
            "outputs": [{"name": name, **like} for name, like in outputs],
            "operators": dict(graphs.operators(self.graph).most_common()),
            "weights": len(self.weights),
            "weight_bytes": weight_files.total_bytes(self.weights),
        }

    @cached_property
    def _default_dtype_node(self) -> str | None:
        return graphs.node_of_default_dtype(self.graph)

    def _pieces(self) -> Iterator[bytes | memoryview]:
        yield graphs.to_text(self.graph)
        yield from weight_files.pieces(self.weights)


@dataclass(frozen=True)
class ModelFiles:
    """A session's model as files: the graph's text, the open file of weights, and the hash of both. As a context
    manager it closes the file."""

    graph: bytes
    weights: IO[bytes]
    hash: bytes

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

    def __exit__(self, *_: object) -> None:
        self.weights.close()


def _is_whole(folder: Path) -> bool:
    try:
        Bundle.load(folder)
    except BundleError:
        return False
    return True


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Writes the names in a folder to the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, most: int) -> bytes:
    try:
        if path.stat().st_size > most:
            raise BundleError(f"{path} has {path.stat().st_size} bytes, but at most {most} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}: give a folder of atoll export") from None


def _check_weights(folder: Path, weights: Mapping[str, torch.Tensor], wanted: Mapping[str, dict[str, Any]]) -> None:
    if weights.keys() != wanted.keys():
        odd = sorted(weights.keys() ^ wanted.keys())
        raise BundleError(f"{folder}: the weights {', '.join(odd[:5])} are in only one of {GRAPH} and {WEIGHTS}")
    for name, tensor in weights.items():
        has = {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape)}
        if has != wanted[name]:
            raise BundleError(f"{folder}: the weight {name} is {has} in {WEIGHTS}, but {wanted[name]} in {GRAPH}")


def _check_meta(folder: Path) -> None:
    try:
        meta = json.loads(_read(folder / META, MAX_GRAPH_BYTES))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{folder / META} is not JSON: {error}") from None
    if not isinstance(meta, dict) or meta.get("atoll_bundle") != graphs.VERSION:
        raise BundleError(f"{folder / META} does not have version {graphs.VERSION}: export the model again")
