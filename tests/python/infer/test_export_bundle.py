# SPDX-License-Identifier: Apache-2.0
"""Bundles on disk: the contents of the files, and the detection of any damage."""

import functools
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atoll.infer import Bundle, BundleError, Session, capture, run_graph
from atoll.infer import graph as graphs
from atoll.infer import weights as weight_files
from atoll.infer.dtypes import IN_FILES

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Small(nn.Module):
    """A model with weights of odd sizes, one of them without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3, bias=False)
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("keep", torch.tensor(True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x)))
        return torch.cat([x.where(self.keep, x + 1), self.none])


def captured() -> Bundle:
    torch.manual_seed(3)
    return capture(Small().eval(), X)


small = functools.cache(captured)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return small().save(tmp_path)


def rewritten(folder: Path, change: Callable[[Path], None]) -> Path:
    """Returns a copy with a change, named by its new hash, so that only its contents can be wrong."""
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    change(copy)
    text = (copy / "graph.json").read_bytes() + (copy / "weights.safetensors").read_bytes()
    return copy.rename(folder.parent / hashlib.sha256(text).hexdigest())


def test_files(saved: Path) -> None:
    names = {"graph.json", "weights.safetensors", "meta.json"}
    assert {path.name for path in saved.iterdir()} == names
    text = b"".join((saved / name).read_bytes() for name in ("graph.json", "weights.safetensors"))
    assert saved.name == hashlib.sha256(text).hexdigest() == small().hash
    meta = json.loads((saved / "meta.json").read_text())
    assert meta["torch"] == torch.__version__.partition("+")[0]
    assert meta["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 4]}]
    assert meta["outputs"] == [{"name": "output", "dtype": "float32", "shape": [3, 3]}]
    assert meta["weights"] == 5
    assert meta["operators"]["aten::linear"] == 2
    assert str(saved.parent) not in text.decode(errors="replace")
    assert list(saved.parent.iterdir()) == [saved], "no part is left behind"


def test_saving_twice(saved: Path) -> None:
    before = (saved / "graph.json").stat().st_mtime_ns
    assert small().save(saved.parent) == saved
    assert (saved / "graph.json").stat().st_mtime_ns == before


def test_loaded_is_what_was_saved(saved: Path) -> None:
    bundle, loaded = small(), Bundle.load(saved)
    assert loaded.graph == bundle.graph
    assert loaded.hash == saved.name
    assert list(loaded.weights) == list(bundle.weights)
    for name, tensor in bundle.weights.items():
        assert loaded.weights[name].dtype == tensor.dtype
        assert torch.equal(loaded.weights[name], tensor)
    assert torch.equal(run_graph(loaded, [X])[0], run_graph(bundle, [X])[0])
    assert loaded.save(saved.parent / "again").name == saved.name


def test_weights_are_aligned_and_mapped(saved: Path) -> None:
    weights = Bundle.load(saved).weights
    assert {tensor.data_ptr() % weight_files.ALIGNMENT for tensor in weights.values() if tensor.numel()} == {0}
    weights["first.weight"].fill_(7)
    assert not (Bundle.load(saved).weights["first.weight"] == 7).any(), "a change stays in this process"


@pytest.mark.parametrize("dtype", IN_FILES)
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65])
def test_safetensors_reads_the_file(dtype: torch.dtype, count: int, tmp_path: Path) -> None:
    """The safetensors package itself, as other programs use it."""
    safetensors = pytest.importorskip("safetensors.torch")
    generator = torch.Generator().manual_seed(count)
    weights = {
        "_pad0": torch.randint(0, 2, (count, 3), generator=generator).to(dtype),
        "b.c": torch.tensor(1, dtype=dtype),
        "a": torch.randint(0, 2, (2, count), generator=generator).to(dtype).t(),
    }
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"".join(weight_files.pieces(weights)))
    found = safetensors.load_file(path)
    for name, tensor in weights.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)
    mapped = weight_files.map_file(path)
    own = weight_files.tensors_in(path, mapped, weights)
    assert set(own) == set(weights)
    assert all(torch.equal(own[name], weights[name]) for name in own)
    assert set(weight_files.tensors_in(path, mapped, ())) == set(weights) - {"_pad0"}, "a name for padding"


def test_a_weight_may_have_the_name_of_padding(tmp_path: Path) -> None:
    module = nn.Module()
    module.register_buffer("_pad0", torch.ones(3))
    module.forward = lambda x: x + module._pad0  # type: ignore[assignment, operator]
    bundle = capture(module.eval(), torch.zeros(3))
    loaded = Bundle.load(bundle.save(tmp_path))
    assert torch.equal(run_graph(loaded, [torch.zeros(3)])[0], torch.ones(3))


def test_equal_models_have_equal_hashes() -> None:
    torch.manual_seed(4)
    assert captured().hash == small().hash
    assert capture(Small().eval(), X).hash != small().hash, "other weights"
    torch.manual_seed(3)
    assert capture(Small().eval(), X[:2]).hash != small().hash, "another graph"


def test_renamed(saved: Path) -> None:
    other = saved.rename(saved.parent / "model")
    with pytest.raises(
        BundleError, match=f"a model with the hash {saved.name}, but the hash must be the folder's name"
    ):
        Bundle.load(other)


@pytest.mark.parametrize("file", ["graph.json", "weights.safetensors"])
def test_every_changed_byte_is_found(file: str, saved: Path) -> None:
    original = (saved / file).read_bytes()
    for place in {0, 7, 8, len(original) // 2, len(original) - 1}:
        changed = bytearray(original)
        changed[place] ^= 1
        (saved / file).write_bytes(changed)
        with pytest.raises(BundleError):
            Bundle.load(saved)
    for length in {0, 1, 8, len(original) - 1}:
        (saved / file).write_bytes(original[:length])
        with pytest.raises(BundleError):
            Bundle.load(saved)


@pytest.mark.parametrize("file", ["graph.json", "weights.safetensors", "meta.json"])
def test_missing_files(file: str, saved: Path) -> None:
    os.remove(saved / file)
    with pytest.raises(BundleError, match=f"{file} cannot be"):
        Bundle.load(saved)


def with_graph(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        graph = json.loads((folder / "graph.json").read_text())
        change(graph)
        (folder / "graph.json").write_bytes(graphs.to_text(graph))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.update(atoll_graph=2), "does not have version 1"),
        (lambda graph: graph.pop("inputs"), "does not have version 1"),
        (lambda graph: graph["tensors"][0].pop("shape"), "lacks a field"),
        (lambda graph: graph["tensors"][0].update(dtype="complex64"), "tensor 0 is"),
        (lambda graph: graph["tensors"][0].update(shape=[-1]), "tensor 0 is"),
        (lambda graph: graph["tensors"][0].update(shape=[1] * 9), "tensor 0 is"),
        (lambda graph: graph["tensors"].append({"dtype": "int8", "shape": []}), "nothing makes the graph's tensor"),
        (lambda graph: graph["inputs"].append(0), "an input of the graph makes tensor 0, which is already made"),
        (lambda graph: graph["nodes"].reverse(), "which no earlier node makes"),
        (lambda graph: graph["nodes"][0].update(outputs=[999]), "which is already made or not described"),
        (lambda graph: graph["nodes"][0].update(op=3), "fields of the wrong type"),
        (lambda graph: graph["outputs"][0].update(tensor=-1), "an output of the graph uses tensor -1"),
        (lambda graph: graph["weights"][0].update(name="w"), "in only one of"),
        (lambda graph: graph["weights"][0].update(name=graph["weights"][1]["name"]), "two weights with the same name"),
        (lambda graph: graph["tensors"][1].update(dtype="float64"), "the weight first.weight is"),
        (lambda graph: graph["structure"].update(more=""), "must have the fields input and output only"),
        (lambda graph: graph["structure"].update(output='{"list": []}'), "do not fit the graph"),
        (lambda graph: graph["structure"].update(input="{}"), "structure of the inputs"),
    ],
)  # fmt: skip
def test_graphs_that_are_wrong(change: Callable[[dict[str, Any]], object], message: str, saved: Path) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.load(rewritten(saved, with_graph(change)))
    assert message in str(caught.value)


def with_header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "weights.safetensors"
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % 64)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.pop("_pad0"), "but the previous entry ends at"),
        (lambda header: header["first.weight"].update(dtype="F4"), "is not a tensor of"),
        (lambda header: header["first.weight"].update(shape=[5, 5]), "is not a tensor of"),
        (lambda header: header["first.weight"].update(shape=[5, -4]), "is not a tensor of"),
        (lambda header: header["first.weight"].update(shape=[1] * 7 + [5, 4]), "is not a tensor of"),
        (lambda header: header["none"].update(shape=[0, 2**20, 2**20]), "is not a tensor of"),
        (lambda header: header["first.weight"].update(data_offsets=[0]), "is not a tensor of"),
        (lambda header: header["second.weight"].update(data_offsets=[2**50, 2**50 + 60]), "is not a tensor of"),
        (lambda header: header["first.weight"].pop("shape"), "its header cannot be read"),
        (lambda header: header.update(extra={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}), "in only one of"),
        (lambda header: header.update(extra={"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}), "starts at byte"),
        (lambda header: header.update(first=3), "its header cannot be read"),
    ],
)  # fmt: skip
def test_headers_that_are_wrong(change: Callable[[dict[str, Any]], object], message: str, saved: Path) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.load(rewritten(saved, with_header(change)))
    assert message in str(caught.value)


def test_weights_that_are_not_aligned(saved: Path) -> None:
    def shift(folder: Path) -> None:
        path = folder / "weights.safetensors"
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        path.write_bytes((size + 8).to_bytes(8, "little") + data[8 : 8 + size] + b" " * 8 + data[8 + size :])

    with pytest.raises(BundleError, match="not at a multiple of 64"):
        Bundle.load(rewritten(saved, shift))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + 2] ^= 0x40  # in the exponent of the first weight
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flipped, lambda path: os.truncate(path, 0), Path.unlink])
def test_a_damaged_cache_is_written_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = Small().eval()
    for _ in range(2):
        with Session(net, X, cache=tmp_path, profile_seconds=0.0) as session, torch.no_grad():
            torch.testing.assert_close(session(X), net(X))
        (folder,) = tmp_path.iterdir()
        damage(folder / "weights.safetensors")


def test_threads_may_save_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_is_amid, second_is_over = threading.Event(), threading.Event()
    facts = Bundle.facts

    def slow_in_the_first(bundle: Bundle) -> dict[str, Any]:
        if threading.current_thread() is not threading.main_thread():
            first_is_amid.set()
            assert second_is_over.wait(60)
        return facts(bundle)

    monkeypatch.setattr(Bundle, "facts", slow_in_the_first)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(captured().save, tmp_path)
        assert first_is_amid.wait(60)
        folder = captured().save(tmp_path)
        second_is_over.set()
        assert first.result(60) == folder
    assert Bundle.load(folder).hash == small().hash
    assert list(tmp_path.iterdir()) == [folder]


def test_files_are_on_the_disk_before_the_folder_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    small().save(tmp_path)
    assert events[:3] == ["graph.json", "weights.safetensors", "meta.json"]
    assert events[3].endswith(".part")
    assert events[4:] == ["rename"]


def test_another_process_may_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = small().save(tmp_path / "theirs")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        shutil.copytree(theirs, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    folder = small().save(tmp_path / "ours")
    assert Bundle.load(folder).hash == small().hash
    assert [path.name for path in (tmp_path / "ours").iterdir()] == [folder.name]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        small().save(tmp_path / "file")
