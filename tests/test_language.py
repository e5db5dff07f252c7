"""Plain English in docstrings, comments, messages and pages.

The worst patterns of our old style are refused: verbs of speech for reports and warnings, clauses
in the place of nouns, questions as docstrings, and pronouns without a noun.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

WORDS = {
    r"told|tells? (?:a|all|every|of|who|what|the|us|it|them)": "notify, report, warn, say which",
    r"said": "reported, printed, the message",
    r"stands?(?! for\b)(?!-)": "is, exists, remains",
    r"beside": "next to, in addition to, compared with",
    r"anew": "again",
    r"alike": "in the same way, equal",
    r"nobody|somebody": "no rank, a rank, no caller",
    r"of which|of whom": "name the subject, or cut the sentence",
    r"(?:that|those) of": "repeat the noun",
    r"so to say": "cut it",
    r"who waits?|who comes|who asks": "the waiting rank, the caller",
    r"what (?:was|were|is|are|has been) \w+(?:ed|en|wn)\b": "the reduced gradients, the known names",
    r"without a word": "silently",
    r"goe?s? on(?! to\b)": "continue",
    r"for ever": "forever",
    r"equally many": "the same number of",
    r"(?:another|other) \w+ than": "a different ... than, a ... other than",
    r"every so often": "at intervals",
    r"whatever (?:the|their|its)": "regardless of",
    r"the one before(?! it)": "the previous one",
    r"the begin": "the beginning, the start",
    r"comes? and goe?s?": "are lost or added",
    r"(?<!here )(?:is|are|was|were) no (?!\w+er\b|more\b|such\b)\w+": "is not a",
}
ANY = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.I)
# Words that begin a docstring and are no verb and no noun.
BEGINNINGS = re.compile(
    r"(?:Of|Those|That|By|Is|Are|Was|Were|Does|Do|Did|Has|Have|Had|Can|May|Must|Will|Which|Who|Whom"
    r"|Whose|What|Where|When|How|Why|It|They|He|She|Them|His|Their|Whether|If|As|So|But|And|Or)\b"
)


class Fault(NamedTuple):
    where: str
    text: str
    instead: str


def faults_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each refused phrase of a text with what to write instead. Code in backticks is left
    out.
    """
    prose = re.sub(r"``.*?``|`[^`\n]*`", "x", text, flags=re.S)
    if not ANY.search(prose):  # nearly always
        return
    for pattern, instead in WORDS.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", prose, re.I):
            yield found[0], instead


def docstring_faults(text: str) -> Iterator[tuple[str, str]]:
    first = text.strip().partition("\n\n")[0].strip()
    if first.endswith("?"):
        yield first[:60], "a statement: Return whether ..."
    if found := BEGINNINGS.match(first):
        yield first[:60], f"a verb or the noun described, not {found[0]!r}"


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def python_faults(source: str, name: str) -> Iterator[Fault]:
    """Yield the faults of comments, docstrings and other texts of a Python file."""
    tree = ast.parse(source)
    for line, text in docstrings(tree):
        for found in docstring_faults(text):
            yield Fault(f"{name}:{line}", *found)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in faults_in(node.value):
                yield Fault(f"{name}:{node.lineno}", *found)
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append((token.start[0], token.string.lstrip("# ")))
    for line, text in comments:
        for found in faults_in(text):
            yield Fault(f"{name}:{line}", *found)


def page_faults(text: str, name: str) -> Iterator[Fault]:
    """Yield the faults of a page of Markdown, outside of its code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for found in faults_in(prose):
        yield Fault(name, *found)


def faults(path: Path) -> list[Fault]:
    name = str(path.relative_to(ROOT))
    text = path.read_text()
    if path.suffix == ".py":
        return list(python_faults(text, name))
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        return list(page_faults("\n".join(prose), name))
    return list(page_faults(text, name))


def texts() -> list[Path]:
    """Return every file that people read."""
    folders = ("src", "compat", "compat-azureml", "examples", "benchmarks")
    code = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    kept = (".py", ".md", ".ipynb")
    found = [path for path in (*code, *pages) if path.suffix in kept and "_build" not in path.parts]
    return sorted({path for path in found if ".egg-info" not in str(path)})


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_are_plain_english(path: Path) -> None:
    assert [f"{fault.where}: {fault.text!r} ({fault.instead})" for fault in faults(path)] == []


def test_the_check_reports_refused_phrases() -> None:
    source = '"""Is it so?"""\nx = "all ranks are told"  # nobody waits\n'
    assert [fault.text for fault in python_faults(source, "f")] == [
        "Is it so?",
        "Is it so?",
        "told",
        "nobody",
    ]
    assert list(page_faults("It stands for `told`.\n```\ntold\n```\n", "p")) == []


if __name__ == "__main__":
    count = 0
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else texts():
        every = faults(each.resolve())
        count += len(every)
        for fault in every if sys.argv[1:] else ():
            print(f"{fault.where}: {fault.text!r} ({fault.instead})")
        if not sys.argv[1:] and every:
            print(len(every), each.relative_to(ROOT))
    print(count)
