# SPDX-License-Identifier: Apache-2.0
"""The page of the C++ headers, generated from their comments whenever the site is built, and links to sources, which
the site does not hold, as plain text (hooks of mkdocs)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = "reference/cpp.md"
ENTRY = {
    "A robot's session": ["infer/session/session.h", "infer/client/client.h", "infer/session/report.h"],
    "Models": ["infer/bundle/bundle.h", "infer/graph.h", "infer/run/runner.h", "infer/profile.h"],
    "With libtorch": ["pytorch/aten/operator_runner.h", "pytorch/aten/package_engine.h"],
    "Planners": [
        "plan/batches/batches.h",
        "plan/layers/layers.h",
        "plan/operators/operators.h",
        "plan/simulate/simulate.h",
    ],
    "Links": ["transport/endpoint.h", "transport/link.h", "transport/stream/credentials.h"],
    "Everywhere": ["core/error.h", "core/deadline.h"],
}
OPENING = """\
# C++

`libatoll` is free of PyTorch. Install its CMake package from a build, and use it as
[examples/cpp_client](../split-inference.md#in-c) does:

```
cmake --install build/release --component devel --prefix WHERE
find_package(Atoll REQUIRED)    # targets atoll::atoll, and atoll::infer for sessions
```

The namespace is `atl`. Below are the headers to begin with, each declaration with the comment that it has in the
code; then all that are installed.
"""
COMMENT = re.compile(r"^\s*///\s?(.*)$")
TO_SOURCES = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:bench|examples|python|scripts|src|tests)/[^)]*\)")
_SKIPPED = ("private:", "#", "namespace", "}")


def installed(root: Path = ROOT) -> list[Path]:
    """Returns the headers that cmake/AtollPackage.cmake installs."""
    text = (root / "cmake/AtollPackage.cmake").read_text()
    (layers,) = re.findall(r"foreach\(layer ([\w ]+)\)", text)
    excluded = re.findall(r"PATTERN ([\w/]+) EXCLUDE", text)
    source = root / "src/atoll"
    headers = [path for layer in layers.split() for path in (source / layer).rglob("*.h")]
    headers = [path for path in headers if not any(f"/{folder}/" in path.as_posix() for folder in excluded)]
    headers += [root / name for name in re.findall(r"\$\{PROJECT_SOURCE_DIR\}/(src/\S+\.h)", text)]
    return sorted(headers)


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Returns (declaration, comment) for each `///` comment before a declaration; private members are left out."""
    comment: list[str] = []
    declaration: list[str] = []
    hidden = False
    for line in text.splitlines():
        hidden = line.strip() == "private:" or (hidden and line != "};")
        if hidden:
            continue
        if match := COMMENT.match(line):
            comment, declaration = ([] if declaration else comment) + [match[1]], []
        elif comment:
            declaration.append(line.split("///")[0].strip())
            if re.search(r"[;{}]\s*$", declaration[-1]) or not declaration[-1]:
                shown = " ".join(declaration).strip().rstrip("{").strip()
                if shown and not shown.startswith(_SKIPPED):
                    yield shown, " ".join(comment)
                comment, declaration = [], []


def page(root: Path = ROOT) -> str:
    text, source = OPENING, root / "src/atoll"
    for title, names in ENTRY.items():
        text += f"\n## {title}\n"
        for name in names:
            text += f"\n### atoll/{name}\n\n"
            for declaration, comment in documented((source / name).read_text()):
                text += f"```cpp\n{declaration}\n```\n{escaped(comment)}\n\n"
    text += "\n## All installed headers\n\n"
    text += "\n".join(f"- `atoll/{path.relative_to(source)}`" for path in installed(root))
    return text + "\n"


def escaped(comment: str) -> str:
    """Escapes a comment, in which only code is markup."""
    return re.sub(r"([*_<\[\]])", r"\\\1", comment) if "`" not in comment else comment.replace("<", "&lt;")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=page()))
    return files


def on_page_markdown(markdown: str, **_given: Any) -> str:
    return TO_SOURCES.sub(r"\1", markdown)
