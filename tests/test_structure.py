"""Limits on complexity, one home for each name, and no import cycle.

The limits measure what makes code hard to read: long files and functions, classes of many
attributes, long parameter lists. What breaks one is divided by subject, not squeezed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_architecture import PACKAGE, ROOT, dotted, files, own_targets

FILE_LINES = 600
FUNCTION_LINES = 50
CLASS_ATTRIBUTES = 20
PARAMETERS = 8
COLUMNS = 100
TEST_NAME = 60  # characters
WORDS = 3  # in a row, of a message that a test pins


class Broken(NamedTuple):
    where: str
    size: int


@cache
def sources() -> list[Path]:
    """Return every Python file of the package, its tests, benchmarks and examples."""
    folders = ("src", "compat", "compat-azureml", "tests", "benchmarks", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function of a module with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child  # type: ignore[misc]
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def code_lines(function: ast.FunctionDef) -> int:
    """Lines of the body, without the docstring and the signature."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameters(function: ast.FunctionDef) -> int:
    """The number of parameters, without ``self`` and ``cls``."""
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def is_public(qualified: str) -> bool:
    """Return whether users call this function: no part of its name is private. A constructor counts
    as its class.
    """
    parts = [part for part in qualified.split(".") if part not in ("__init__", "__call__")]
    return not any(part.startswith("_") for part in parts)


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that methods of a class assign on ``self``."""
    found = set()
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Attribute)
            and isinstance(child.ctx, ast.Store)
            and isinstance(child.value, ast.Name)
            and child.value.id == "self"
        ):
            found.add(child.attr)
    return found


def classes(module: ast.Module) -> Iterator[ast.ClassDef]:
    """Classes at the top of a module."""
    return (node for node in module.body if isinstance(node, ast.ClassDef))


def long_functions(module: ast.Module) -> list[Broken]:
    sizes = ((name, code_lines(function)) for name, function in functions(module))
    return [Broken(name, size) for name, size in sizes if size > FUNCTION_LINES]


def long_signatures(module: ast.Module) -> list[Broken]:
    sizes = ((name, parameters(each)) for name, each in functions(module) if not is_public(name))
    return [Broken(name, size) for name, size in sizes if size > PARAMETERS]


def crowded_classes(module: ast.Module) -> list[Broken]:
    nodes = (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    sizes = ((node.name, len(attributes(node))) for node in nodes)
    return [Broken(name, size) for name, size in sizes if size > CLASS_ATTRIBUTES]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES


@pytest.mark.parametrize("path", files(), ids=dotted)
def test_functions_and_classes_stay_small(path: Path) -> None:
    module = tree(path)
    assert long_functions(module) == []
    assert long_signatures(module) == []
    assert crowded_classes(module) == []


def test_the_formatter_is_never_switched_off() -> None:
    marks = [f"fmt{':'} {word}" for word in ("skip", "off")]
    found = [path for path in sources() if any(mark in path.read_text() for mark in marks)]
    assert found == []


def test_no_line_of_the_package_is_too_long() -> None:
    long = [
        f"{dotted(path)}:{number}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert long == []


# One class of one framework, with counterparts of the same name in the others (or of Keras 3 and 2).
MIRRORED = {
    "keras",
    "tf_keras",
    "torch",
    "tensorflow",
    "jax",
    "mxnet",
    "numpy",
    "lightning",
    "onnx",
}


def test_class_names_are_unique() -> None:
    """One name for one class, so that grep finds it."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in files():
        module = dotted(path)
        if "compat" not in module.split(".") and not MIRRORED & {*module.split(".")}:
            for node in classes(tree(path)):
                homes[node.name].append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, also inside functions and for type checkers."""
    return {target for _, target in own_targets(path.read_text())} - {"__init__", dotted(path)}


# Pairs of modules that import each other, one of them when it is used, with the reason.
CYCLES: dict[frozenset[str], str] = {}


def cycles(edges: dict[str, set[str]]) -> list[frozenset[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            component = set()
            while not component or module not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(frozenset(component))

    for module in sorted(edges):
        if module not in index:
            visit(module)
    return found


def test_modules_do_not_import_each_other() -> None:
    edges = {dotted(path): imported(path) for path in files()}
    assert [sorted(each) for each in cycles(edges) if each not in CYCLES] == []


def test_the_limits_report_violations() -> None:
    lines = "\n".join(f"    x{number} = {number}" for number in range(FUNCTION_LINES + 1))
    assert long_functions(ast.parse(f"def f():\n{lines}")) == [Broken("f", FUNCTION_LINES + 1)]
    names = ", ".join(f"p{number}" for number in range(PARAMETERS + 1))
    assert long_signatures(ast.parse(f"def f({names}): ...")) == []
    assert long_signatures(ast.parse(f"def _f({names}): ...")) == [Broken("_f", PARAMETERS + 1)]
    body = "; ".join(f"self.a{number} = 0" for number in range(CLASS_ATTRIBUTES + 1))
    many = ast.parse(f"class C:\n    def f(self): {body}")
    assert crowded_classes(many) == [Broken("C", CLASS_ATTRIBUTES + 1)]
    assert words("rank 1 has not reached the end") == 5
    assert words("rank 1, x.weight, --codec=int8, of shape (3,)") == 2
    assert [text for _, text in pinned(ast.parse("assert 'no such file' in text"))] == [
        "no such file"
    ]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [frozenset("abc")]


def test_names_of_tests_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if path.is_relative_to(ROOT / "tests")
        for name, _ in functions(tree(path))
        if name.rpartition(".")[2].startswith("test_") and len(name.rpartition(".")[2]) > TEST_NAME
    ]
    assert long == []


def pinned(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts that a test expects in a message: of ``match=``, and of ``assert "..." in text``."""

    def text(node: ast.expr) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(map(str, parts))

    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "match":
                    yield from text(keyword.value)
            if isinstance(node.func, ast.Name) and node.func.id in ("mentioning", "mentions"):
                for argument in node.args:
                    yield from text(argument)
        elif isinstance(node, ast.Assert):
            for each in ast.walk(node.test):
                if isinstance(each, ast.Compare) and isinstance(each.ops[0], (ast.In, ast.NotIn)):
                    yield from text(each.left)


def words(text: str) -> int:
    """The most ordinary lower-case words in a row. Names and values have capitals, signs, digits."""
    runs = re.findall(r"(?<![\w.=/'-])[a-z]+(?: [a-z]+)*(?![\w(=/_])", text)
    return max((len(run.split()) for run in runs), default=0)


def test_tests_pin_values_and_no_sentences() -> None:
    """The English of a message may be edited: ``tests/kits/messages.py`` pins its values."""
    sentences = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sources()
        if path.is_relative_to(ROOT / "tests")
        for line, text in pinned(tree(path))
        if words(text) > WORDS
    ]
    assert sentences == []


def test_every_file_of_the_package_was_looked_at() -> None:
    assert len(files()) > 300
    assert PACKAGE / "__init__.py" in files()
