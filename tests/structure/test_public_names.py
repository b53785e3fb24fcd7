# SPDX-License-Identifier: Apache-2.0
"""What users may rely on: a few public modules, each of which lists its names, and pages that name nothing else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"infer", "pipeline", "plan", "training"}  # public modules that `import atoll` provides
PUBLIC = (
    "__init__.py", "training.py", "infer/__init__.py", "pipeline/__init__.py", "plan/__init__.py", "sim/__init__.py",
    "adapters/__init__.py", "adapters/accelerate.py", "adapters/huggingface.py", "adapters/lightning.py",
)  # fmt: skip
MAX_NAMES = 15
# A trial of messages without a ring, of bench/device_pair.py: it needs the groups that the compiled module holds.
TRIAL = {"remember_direct", "forget_direct", "pass_direct"}


def module(path: str) -> ast.Module:
    return ast.parse((ROOT / "python/atoll" / path).read_text())


def names_of(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_the_package_itself_has_few_names() -> None:
    names = set(names_of(module("__init__.py")))
    assert names >= MODULES
    assert len(names - MODULES - {"__version__"}) <= MAX_NAMES


@pytest.mark.parametrize("path", PUBLIC)
def test_a_public_module_lists_its_names(path: str) -> None:
    tree = module(path)
    names = names_of(tree)
    assert names
    assert names == sorted(set(names))
    assert ast.get_docstring(tree)


def test_the_compiled_module_has_nothing_for_tests_alone() -> None:
    """What only tests call is in tests/pytorch/testing_module.cpp."""
    offered = {node.name for node in module("_C.pyi").body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    text = "\n".join(path.read_text() for path in (ROOT / "python/atoll").rglob("*.py"))
    used = set(re.findall(r"\b_C\.(\w+)", text))
    returned = {"RedisJob"}  # by redis_jobs
    assert offered - used - returned - TRIAL == set()


def test_no_page_names_the_compiled_module() -> None:
    """Its functions may change in any release; users have atoll.plan, atoll.infer and the others."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    assert [page.relative_to(ROOT).as_posix() for page in pages if re.search(r"\b_C\b", page.read_text())] == []
