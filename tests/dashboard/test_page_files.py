"""The files of the page: complete, small, and without a way for data to become markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_structure import FILE_LINES

STATIC = Path(__file__).parents[2] / "src" / "farandole" / "dashboard" / "static"
OWN = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
SCRIPTS = [path for path in OWN if path.suffix == ".js"]
# what turns text into markup or code
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
ELSEWHERE = re.compile(r"""["'(]\s*(?:https?:)?//""")  # an address of another server
NAMESPACE = "http://www.w3.org/2000/svg"


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(STATIC)) for path in paths]


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_a_script_is_small_and_imports_what_exists(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES
    assert MARKUP.findall(text) == []
    for line in re.findall(r'^import .*?from "(.+?)";', text, re.M | re.S):
        assert (path.parent / line).is_file(), line


@pytest.mark.parametrize("path", OWN, ids=names(OWN))
def test_a_file_loads_nothing_from_elsewhere(path: Path) -> None:
    assert ELSEWHERE.findall(path.read_text().replace(NAMESPACE, "")) == []


def test_the_page_names_files_that_exist() -> None:
    text = (STATIC / "index.html").read_text()
    found = re.findall(r'(?:href|src)="/static/(.+?)"', text)
    assert len(found) > 5
    assert [name for name in found if not (STATIC / name).is_file()] == []
    assert re.findall(r"<script(?![^>]*src=)|\son\w+=|\sstyle=", text) == []


def test_vendored_files_have_their_licences() -> None:
    for folder in (STATIC / "vendor").iterdir():
        assert (folder / "LICENSE").is_file(), folder
