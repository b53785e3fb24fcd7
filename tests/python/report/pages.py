# SPDX-License-Identifier: Apache-2.0
"""Reads pages for tests."""

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "path", "rect", "input"}


class Page(HTMLParser):
    """The contents of a page; checks that each element is closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"{name} stays open" for name in self._open]

    def of(self, name: str, kind: str = "") -> list[dict[str, str | None]]:
        return [
            attributes
            for each, attributes in self.elements
            if each == name and (not kind or kind in (attributes.get("class") or "").split())
        ]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> in {self._open[-1:]} at {self.getpos()}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.texts.append(data)
