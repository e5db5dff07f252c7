"""Pieces of logs and the search in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from farandole.dashboard.server import logs
from farandole.job.runs.home import RunsHome
from tests.kits.written_runs import write, written_run


def piece(path: Path, offset: int, limit: int = 65536) -> dict[str, Any]:
    with open(path, "rb") as file:
        return logs.piece(file, offset, limit)


def found(path: Path, text: str, before: int | None = None, *, ignore_case: bool = False) -> Any:
    with open(path, "rb") as file:
        return logs.search(file, text, before, ignore_case)


@given(st.text(max_size=80), st.integers(1, 30))
def test_pieces_join_to_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "log"
    write(str(path), text.encode("utf-8", "replace"))
    size, offset, parts = path.stat().st_size, 0, []
    while offset < size:
        part = piece(path, offset, max(limit, 4))
        assert part["begin"] == offset
        assert part["end"] > offset
        parts.append(part["text"])
        offset = part["end"]
    assert "".join(parts) == logs.readable(text.encode("utf-8", "replace"))


def test_the_end_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(str(path), "first line\nsécond\nthird\n".encode())
    assert piece(path, -10) == {"text": "third\n", "begin": 19, "end": 25, "size": 25}
    assert piece(path, -1000)["text"].startswith("first")
    assert piece(path, 13, 3)["text"] == "co"  # the second byte of é is no character
    assert piece(path, 99)["text"] == ""


def test_a_line_without_end_is_shown_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(str(path), b"x" * (3 << 20))
    part = piece(path, -100)
    assert (part["text"], part["begin"]) == ("x" * 100, (3 << 20) - 100)
    assert len(piece(path, 0, 1 << 30)["text"]) == logs.LARGEST_PIECE


def test_binary_data_and_colors_become_text() -> None:
    assert logs.readable(b"a\0b\x07\x1b[31mred\x1b[0m\xff\r\n\t<b>") == "a␀b␇red\ufffd\r\n\t<b>"
    assert logs.readable(b"\x1b]0;title\x07") == "␛]0;title␇"


@given(st.lists(st.sampled_from(["ab", "aab", "", "xx ab ab", "AB", "ba", "é ab"]), max_size=12))
def test_search_finds_the_last_match_of_each_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "searched"
    data = "\n".join(lines).encode()
    write(str(path), data)
    expected, offset = [], 0
    for number, line in enumerate(lines, 1):
        place = line.encode().rfind(b"ab")
        if place >= 0:
            expected.append((offset + place, number, line))
        offset += len(line.encode()) + 1
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (4, 7, 1 << 20):
            patch.setattr(logs, "_CHUNK", chunk)
            matches = found(path, "ab")["matches"]
            places = [(each["offset"], each["line"], each["text"]) for each in matches]
            assert places == expected[::-1]
            patch.setattr(logs, "_SCANNED", 5)
            before, parts = len(data), []
            while before:
                part = found(path, "ab", before)
                parts += [(each["offset"], each["line"], each["text"]) for each in part["matches"]]
                before = part["next"]
            assert parts == expected[::-1]
            patch.setattr(logs, "_SCANNED", 1 << 30)


def test_search_continues_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_MATCHES", 3)
    path = tmp_path / "log"
    write(str(path), b"".join(b"Step %d\n" % step for step in range(8)))
    first = found(path, "step", ignore_case=True)
    second = found(path, "step", first["next"], ignore_case=True)
    third = found(path, "step", second["next"], ignore_case=True)
    texts = [[each["text"][-1] for each in part["matches"]] for part in (first, second, third)]
    assert texts == [["7", "6", "5"], ["4", "3", "2"], ["1", "0"]]
    assert [part["more"] for part in (first, second, third)] == [True, True, False]
    assert found(path, "step")["matches"] == []
    assert found(path, "")["matches"] == []


def test_a_huge_log_is_opened_at_its_end(page: TestClient, home: RunsHome) -> None:
    run = written_run(home, ranks=2, logs=[b"", b"one\n"])
    with open(run.log_of(0), "r+b") as file:
        os.truncate(file.fileno(), 1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nneedle <script>\n")
    at = f"/api/run/{run.run_id}/log"
    part = page.get(at, params={"rank": 0, "offset": -16}).json()
    assert part["text"] == "needle <script>\n"
    assert part["size"] == (1 << 30) + 17
    match = page.get(f"{at}/search", params={"rank": 0, "text": "needle"}).json()["matches"][0]
    assert (match["offset"], match["line"]) == ((1 << 30) + 1, 2)
    assert page.get(at, params={"rank": 1}).json()["text"] == "one\n"
    assert page.get(at, params={"rank": "all"}).json()["text"] == ""
    assert page.get(at, params={"rank": 2}).status_code == 409
    assert page.get(at, params={"rank": "../x"}).status_code == 400
    raw = page.get(f"{at}/raw", params={"rank": 1})
    assert raw.text == "one\n"
    assert raw.headers["content-disposition"].startswith("attachment")
