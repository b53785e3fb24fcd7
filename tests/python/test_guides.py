# SPDX-License-Identifier: Apache-2.0
"""The commands of the guides work: those marked for it are run, and the options of the others exist."""

import ast
import os
import re
import shlex
import sys
from functools import cache
from importlib.metadata import metadata, requires
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from atoll.cli import app
from atoll.generate.islands import parse_all
from atoll.launch.islands import parse_island, place
from atoll.launch.run import make_parser
from guides import GUIDES, PORTS, follow, shell, steps_of
from launching import eventually, free_port


def commands(script: str) -> list[list[str]]:
    """Returns the `atoll` commands in a piece of shell."""
    lines = re.sub(r"\\\n", " ", script).splitlines()
    words = [shlex.split(line, comments=True) for line in lines if re.search(r"\batoll (?!\()", line)]
    return [line[line.index("atoll") + 1 :] for line in words if "atoll" in line]


def subcommand(command: list[str]) -> list[str]:
    if command[0] in ("plan", "generate"):
        return command[:2]
    return ["profile", command[1] if command[1] == "link" else "model"] if command[0] == "profile" else command[:1]


@cache
def help_of(*words: str) -> str:
    if words == ("run",):
        return make_parser().format_help()
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("guide", GUIDES)
def test_options_exist(guide: str) -> None:
    told = [command for step in steps_of(guide) if step.kind != "file" for command in commands(step.text)]
    assert told
    for command in told:
        words = subcommand(command)
        text = help_of(*words)
        options = [word.split("=")[0] for word in command if word.startswith("--")]
        missing = [option for option in options if not re.search(rf"(?<!-){re.escape(option)}\b", text)]
        assert not missing, f"atoll {' '.join(words)}: {missing}"


@pytest.mark.parametrize("guide", GUIDES)
def test_islands_can_be_read(guide: str) -> None:
    for command in (command for step in steps_of(guide) if step.kind != "file" for command in commands(step.text)):
        texts = [value for word, value in pairwise(command) if word == "--island"]
        if texts and command[0] == "generate":
            parse_all(texts)
        elif texts:
            place([parse_island(text) for text in texts])


def brought(extras: set[str]) -> set[str]:
    """Returns the packages that the wheel requires with these extras, and its own."""
    needs = [Requirement(text) for text in requires("atoll") or []]
    return {"atoll"} | {
        need.name
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    }


def imports(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("guide", GUIDES)
def test_what_files_import_is_installed_before(guide: str) -> None:
    extras, own = {""}, set()
    for step in steps_of(guide):
        if step.kind == "install" and step.what:
            assert step.what in (metadata("atoll").get_all("Provides-Extra") or [])
            assert f"[{step.what}]" in step.text
            extras.add(step.what)
        elif step.kind == "file" and step.what.endswith(".py"):
            own.add(step.what.removesuffix(".py"))
            assert imports(step.text) <= brought(extras) | own | sys.stdlib_module_names, step.what


def test_packages_are_installed_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guides.DOCS", tmp_path)
    block = "```bash\necho installed > from_here\n```\n"
    (tmp_path / "guide.md").write_text(f"<!-- install: page -->\n{block}")
    (tmp_path / "checkout").mkdir()
    assert [*follow("guide.md", tmp_path, dict(os.environ), {})] == []
    (step,) = follow("guide.md", tmp_path, dict(os.environ), {}, tmp_path / "checkout")
    assert (step.kind, step.what) == ("install", "page")
    assert (tmp_path / "checkout/from_here").read_text() == "installed\n"
    assert not (tmp_path / "from_here").exists()


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guide", GUIDES)
def test_guide_can_be_followed(guide: str, tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "ATOLL_CACHE": str(tmp_path / ".cache")}

    assert len(list(follow(guide, tmp_path, environment, ports))) == sum(step.kind == "run" for step in steps_of(guide))


def test_what_a_block_started_ends_with_it(tmp_path: Path) -> None:
    status, said = shell("sleep 1000 & echo $!; false", tmp_path, dict(os.environ))
    assert status == 1
    eventually(lambda: not Path(f"/proc/{int(said)}").exists(), "the end of what was started")


def test_a_block_without_a_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guides.DOCS", tmp_path)
    (tmp_path / "guide.md").write_text("```bash\natoll info\n```\n")
    with pytest.raises(AssertionError, match="say of this block"):
        steps_of("guide.md")


def test_commands_are_read_from_shell() -> None:
    script = "export A=1\nATOLL_X=1 atoll run --nnodes=2 \\\n  --island a:1 train.py\ntrue  # atoll run --wrong\n"
    assert commands(script) == [["run", "--nnodes=2", "--island", "a:1", "train.py"]]
