"""Previews of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.dashboard.server import tables
from farandole.dashboard.server.files import preview

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


def shown(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return preview(file, path.name)


def test_the_first_rows_are_a_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(300), "t": ["<script>"] * 300}), tmp_path / "t.pq")
    found = shown(tmp_path / "t.pq")
    assert found["note"] == "300 rows"
    assert (found["kind"], found["columns"], found["complete"]) == ("table", ["n", "t"], False)
    assert found["rows"][1] == ["1", "<script>"]
    assert len(found["rows"]) == 200
    assert "300" in found["note"]


def test_a_file_that_unpacks_to_much_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"t": ["x" * (8 << 20)] * 12}), tmp_path / "bomb", compression="zstd")
    assert (tmp_path / "bomb").stat().st_size < 1 << 20
    assert shown(tmp_path / "bomb")["kind"] == "table"
    monkeypatch.setattr(tables, "_MEMORY", 64 << 20)
    found = shown(tmp_path / "bomb")
    assert found["kind"] == "binary"
    assert found["note"]


def test_a_damaged_file_is_binary(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PAR1 nothing else PAR1")
    found = shown(tmp_path / "bad")
    assert found["kind"] == "binary"
    assert found["note"]
