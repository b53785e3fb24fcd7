# SPDX-License-Identifier: Apache-2.0
"""Every C++ type has one definition: the linker silently merges two of one name."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:\\\n|[^\n])*"""
    r"""|\bnamespace\s+(?P<space>[\w:]*)\s*\{"""
    r"""|\b(?:struct|class|enum(?:\s+class)?|union)\s+(?:\[\[[^\]]*\]\]\s*)?(?P<type>\w+(?:::\w+)*)(?P<rest>[^;{}()=]*)\{"""
    r"""|[{}]""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def types_of(text: str) -> Iterator[str]:
    """Returns the names, with their namespaces, of the types that other files could name."""
    inside: list[str | None] = []  # for each open brace: its namespace, or none
    for token in TOKEN.finditer(text):
        if token["space"] is not None:
            inside.append(token["space"] or "(anonymous)")
        elif token["type"]:
            if None not in inside and "(anonymous)" not in inside and "<" not in token["rest"].split(":")[0]:
                yield "::".join([*(space for space in inside if space), token["type"]])
            inside.append(None)
        elif token[0] == "{":
            inside.append(None)
        elif token[0] == "}":
            inside.pop()


IN_PLACE = {
    "src/atoll/transport/ucx/no_ucx.cpp",
    "src/atoll/redis/no_hiredis.cpp",
}  # of other files, where those cannot be built


def files_of(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in {".h", ".cpp"}]


@pytest.mark.parametrize(
    "layer", ["core", "json", "transport", "redis", "collectives", "plan", "infer", "sim", "pytorch", "logging"]
)
def test_types_have_one_definition(layer: str) -> None:
    """In the library and the tests of each layer, which are linked into one program."""
    found = defaultdict(set)
    for path in files_of("src/atoll", "tests/support", f"tests/{layer}"):
        for name in types_of(path.read_text()) if str(path.relative_to(ROOT)) not in IN_PLACE else ():
            found[name].add(str(path.relative_to(ROOT)))
    assert len(found) > 300
    assert {name: sorted(paths) for name, paths in found.items() if len(paths) > 1} == {}


def test_the_reader_finds_types() -> None:
    text = """
    namespace a::b { struct C { struct Inner {}; }; class D; enum class E : int { kOne };
    namespace { struct Hidden {}; }  // struct Comment {};
    template <> struct F<int> {}; void g() { struct Local {}; } const char* s = "struct Text {"; }
    struct G final : a::b::C {};
    """
    assert list(types_of(text)) == ["a::b::C", "a::b::E", "G"]
