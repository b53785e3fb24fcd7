# SPDX-License-Identifier: Apache-2.0
"""Manipulated bundles and structures are refused with their own error, or read; nothing is imported."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import BadParameter

from atoll.infer import Bundle, BundleError
from atoll.infer.inputs import Inputs
from atoll.infer.planning.profile_command import host_and_port
from atoll.infer.serving import options_of
from atoll.infer.structure import Structure
from split_cases import bundle

SEED = (
    '{"dict":[["a",{"tuple":["tensor",{"constant":{"float":"nan"}}]}],["b",{"class":"m.C","fields":[["x","tensor"]]}]]}'
)
NEVER = "atoll_never_imported"  # a module that does not exist; an attempt to import it would raise with its name


def changed(text: bytes, dice: random.Random) -> bytes:
    """Returns the bytes with a few of them changed, repeated or left out."""
    made = bytearray(text)
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(made))
        match dice.randrange(4):
            case 0:
                made[place] = dice.choice(b'0123456789-.,:[]{}"eaftnu')
            case 1:
                del made[place : place + dice.randint(1, 8)]
            case 2:
                made[place:place] = made[place : place + dice.randint(1, 30)]
            case _:
                made[place] = dice.randrange(256)
        if not made:
            made += b"{"
    return bytes(made)


def is_read(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except BundleError:
        return False
    return True


@pytest.mark.parametrize("read", [Structure.from_json, Inputs.from_json], ids=["structure", "inputs"])
def test_changed_structures(read: Callable[[str], object]) -> None:
    dice = random.Random(7)
    seed = SEED if read == Structure.from_json else f'{{"parameters":["a","b"],"positional":1,"arguments":{SEED}}}'
    assert is_read(read, seed)
    refused = 0
    for _ in range(4000):
        text = changed(seed.encode(), dice).decode(errors="replace")
        refused += not is_read(read, text)
    assert refused > 1000


@pytest.mark.parametrize("opening", ["[", '{"list": [', '{"dict": [["a", '])
def test_depths_around_that_of_the_interpreter(opening: str) -> None:
    """Nesting of any depth is refused with Atoll's own error, not by the interpreter's limit."""
    closing = {"[": "]", '{"list": [': "]}", '{"dict": [["a", ': "]]}"}[opening]
    for levels in range(67, sys.getrecursionlimit() + 50):
        text = opening * levels + '"tensor"' + closing * levels
        assert not is_read(Structure.from_json, text), levels
        assert not is_read(Inputs.from_json, f'{{"parameters":[],"positional":0,"arguments":{text}}}'), levels


_NAMES = st.sampled_from([f"{NEVER}.Thing", "os.PathLike", "builtins.eval", "subprocess.Popen", "pickle.Unpickler", ""])


@given(st.recursive(
    st.just("tensor"),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: {"list": items}),
        st.tuples(_NAMES, inner).map(lambda pair: {"class": pair[0], "fields": [["x", pair[1]]]}),
    ),
    max_leaves=6,
))  # fmt: skip
def test_classes_come_from_the_callers_list_alone(spec: object) -> None:
    text = json.dumps(spec)
    modules = set(sys.modules)
    structure = Structure.from_json(text)
    tensors = list(range(len(structure.paths("output"))))
    if '"class"' in text:
        with pytest.raises(BundleError, match="hold an unknown class"):
            structure.build(tensors)
    else:
        structure.build(tensors)
    assert set(sys.modules) == modules


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors"])
def test_changed_bundles(name: str, tmp_path: Path) -> None:
    """Changed bundles have matching names, so that only their contents can be wrong."""
    dice = random.Random(11)
    files = {path.name: path.read_bytes() for path in bundle().save(tmp_path).iterdir()}
    head = 2000  # of the weights: the whole header
    folder = tmp_path / "changed"
    refused = 0
    for _ in range(300):
        first, rest = files[name][:head], files[name][head:]
        now = {**files, name: changed(first, dice) + rest if name != "graph.json" else changed(files[name], dice)}
        digest = hashlib.sha256(now["graph.json"] + now["weights.safetensors"]).hexdigest()
        target = folder / digest
        target.mkdir(parents=True, exist_ok=True)
        for each, content in now.items():
            (target / each).write_bytes(content)
        try:
            Bundle.load(target)
        except BundleError:
            refused += 1
        for each in now:
            (target / each).unlink()
    assert refused > 150


@given(st.text())
def test_addresses(text: str) -> None:
    for read in (lambda: host_and_port(text), lambda: options_of(text, Path("key"))):
        try:
            read()
        except (ValueError, BadParameter) as error:
            assert "give HOST:PORT" in str(error)
