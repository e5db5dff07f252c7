"""The pages of docs/api/ equal the docstrings, and every argument of a public function is
explained.

``python -m tests.test_api_pages --write`` rewrites the pages of the installed frameworks. Pages of
frameworks with separate environments are checked there, by ``tests/<framework>/test_api_page.py``.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from farandole.core.api.documented import _COLLECTIVE, ARGUMENTS, RAISES

FOLDER = Path(__file__).parent.parent / "docs" / "api"
TITLES = {
    "torch": "PyTorch tensors",
    "numpy": "numpy arrays",
    "tensorflow": "TensorFlow tensors",
    "keras": "Keras 3 on TensorFlow, JAX or PyTorch",
    "jax": "JAX arrays",
    "mxnet": "MXNet NDArrays",
}
HERE = ["torch", "numpy"]
# Groups of a page, in the order of a program. A name belongs to the first group that lists it, or
# whose pattern it matches.
GROUPS = {
    "Job and ranks": r"init|shutdown|is_initialized|is_homogeneous|(local_|cross_)?(rank|size)(_op)?"
    r"|print|init_distributed|mesh|.*_process_set|ProcessSet|process_set_included_op",
    "Training": r".*Optimizer|Distributed.*|distribute|grad|value_and_grad|.*_gradients|spmd|shard"
    r"|Pipeline|LocalGradientAggregationHelper|SyncBatchNorm.*|convert_sync_batchnorm"
    r"|PartialDistributedGradientTape|seed_everything|use_native",
    "State": r"broadcast_(parameters|optimizer_state|variables|global_variables|model)|save"
    r"|load_model|.*State|BroadcastGlobalVariablesHook|check_replicas",
    "Objects": r".*_object(_fn)?",
    "Collectives": r"(grouped_|sparse_)?(all|broadcast|reduce|gather).*|join|barrier|synchronize|poll"
    r"|Compression",
    "Timeline, errors and what Horovod's programs ask": r".*",
}
RAISED_LATER = {
    "tensorflow": (
        "In a graph, TensorFlow raises tf.errors.UnknownError with the text of these instead."
    ),
    "keras": (
        "In a graph of TensorFlow or JAX, these raise their error with the text of these instead."
    ),
    "jax": (
        "In a program (`jit`), JAX raises JaxRuntimeError with the text of these instead: see"
        " `plain_errors`."
    ),
    "mxnet": "What returns at once raises HorovodInternalError when the array is read.",
}


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes that users import, with those that ``*`` leaves out."""
    beside = [name for name in ("print", "SyncBatchNormalization") if hasattr(module, name)]
    for name in sorted({*module.__all__, *beside}, key=str.lower):
        value = getattr(module, name)
        if not inspect.ismodule(value) and callable(value):
            yield name, value


def signature(value: Any) -> str:
    """Without types: those are for type checkers."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return "(...)"
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    text = str(inspect.Signature(plain))
    text = re.sub(
        r"<class '[\w.]*?\.((?:Compression\.)?\w+)'>",
        r"\1",
        re.sub(r"ProcessSet\(process_set_id=0.*?\)", "all ranks", text),
    )
    return re.sub(r"<ReduceOp\.(\w+): \d>", lambda found: str(found[1]).capitalize(), text)


def section(name: str, value: Any) -> str:
    prose, *parts = re.split(
        r"\n\n(?=(?:Arguments|Raises|Example):\n)", inspect.getdoc(value) or ""
    )
    common = {f"{key}: {text}" for key, text in ARGUMENTS.items()} | {
        RAISES[key] for key in _COLLECTIVE
    }
    lines = [
        f"### `{name}`",
        "",
        f"```python\n{name}{signature(value)}\n```",
        "",
        prose.replace("``", "`"),
    ]
    for part in parts:
        title, *rows = inspect.cleandoc(part).splitlines()
        if title == "Example:":
            lines += ["", "```python", *rows, "```"]
            continue
        rows = [row for row in rows if row not in common]
        if rows:
            lines += ["", *(f"- {_marked(row)}" for row in rows)]
        if title == "Raises:" and all(RAISES[key] in part for key in _COLLECTIVE):
            lines += ["", "Raises what all collectives do."] if not rows else []
    return "\n".join(lines)


def _marked(row: str) -> str:
    name, colon, text = row.partition(": ")
    return f"`{name}`: {text}" if colon and name.isidentifier() else row


def page(framework: str) -> str:
    module = importlib.import_module(f"farandole.{framework}")
    found = list(public(module))
    used = {each for _, value in found for each in _parameters(value)}
    lines = [
        f"# `farandole.{framework}`: every name",
        "",
        (
            f"For {TITLES[framework]}: `import farandole.{framework} as hvd`. Made from the"
            " docstrings, which `help(hvd.allreduce)` shows in full. How to use it:"
            f" [{framework}.md](../{framework}.md)."
        ),
        "",
        "Arguments that mean the same everywhere:",
        "",
        *(f"- `{name}`: {text}" for name, text in ARGUMENTS.items() if name in used),
        "",
        "All collectives raise:",
        "",
        *(f"- {RAISES[key]}" for key in _COLLECTIVE),
        "",
        *([RAISED_LATER[framework], ""] if framework in RAISED_LATER else []),
    ]
    for title, members in grouped(found).items():
        lines += [f"## {title}", "", *(section(name, value) + "\n" for name, value in members)]
    return "\n".join(lines)


def grouped(found: list[tuple[str, Any]]) -> dict[str, list[tuple[str, Any]]]:
    """Return the names of a page by purpose, alphabetically within a group."""
    groups: dict[str, list[tuple[str, Any]]] = {title: [] for title in GROUPS}
    for name, value in found:
        title = next(each for each, pattern in GROUPS.items() if re.fullmatch(pattern, name))
        groups[title].append((name, value))
    return {title: members for title, members in groups.items() if members}


def _parameters(value: Any) -> list[str]:
    try:
        return [
            name for name in inspect.signature(value).parameters if name not in ("args", "kwargs")
        ]
    except ValueError:
        return []


def unexplained(framework: str) -> list[str]:
    """Return the arguments of public functions that no docstring explains."""
    missing = []
    for name, value in public(importlib.import_module(f"farandole.{framework}")):
        if inspect.isclass(value) and issubclass(value, Exception):
            continue
        text = inspect.getdoc(value) or ""
        if inspect.isclass(value):
            text += inspect.getdoc(value.__init__) or ""
        words = [
            each
            for each in _parameters(value)
            if f"``{each}``" not in text and f"    {each}: " not in text
        ]
        missing += [f"{name}: {', '.join(words) or 'no docstring'}"] if words or not text else []
    return missing


def check(framework: str) -> None:
    """The page of a framework is current, and explains every argument."""
    assert unexplained(framework) == []
    current = (FOLDER / f"{framework}.md").read_text()
    assert current == page(framework), (
        "run, where the framework is installed: python -m tests.test_api_pages --write"
    )


@pytest.mark.parametrize("framework", HERE)
def test_the_page_is_current_and_explains_every_argument(framework: str) -> None:
    pytest.importorskip(f"farandole.{framework}")
    check(framework)


def test_every_framework_has_a_page_and_a_test_of_it() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*TITLES, "index"}
    for framework in set(TITLES) - set(HERE):
        assert (FOLDER.parent.parent / "tests" / framework / "test_api_page.py").is_file()


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for framework in TITLES:
        try:
            (FOLDER / f"{framework}.md").write_text(page(framework))
        except ImportError as error:
            print(f"{framework}.md stays as it is: {error}")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
