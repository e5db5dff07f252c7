"""A rank's batches: no rank, no framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from farandole.data import from_parquet
from farandole.estimators.batches import Batches
from farandole.estimators.spec import Columns, Reading
from tests.estimators.tools import table
from tests.kits.messages import mentions

COLUMNS = Columns(("x",), ("y",))


def batches(
    path: Path, rows: int = 61, group: int = 16, size: int = 1, steps: int | None = None
) -> Batches:
    pq.write_table(table(rows), path, row_group_size=group)
    data = from_parquet(str(path), columns=["x", "y"])
    # so little memory that row groups are read one by one
    return Batches(data, COLUMNS, Reading(16, steps, 0, 256, shuffle=True), 0, size)


def test_a_run_continues_over_rows_of_another_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, other = batches(tmp_path / "a"), batches(tmp_path / "b", group=5)
    list(made)
    other.load(made.state())
    assert caplog.text == ""
    assert sum(batch.rows for batch in other) == 61
    assert other.state()["epoch"] == 2
    half: Any = batches(tmp_path / "c", steps=2)
    list(half)
    moved = batches(tmp_path / "d", group=5, steps=4)
    moved.load(half.state())
    assert mentions(caplog.text, "epoch", "rows")
    assert sum(batch.rows for batch in moved) == 61
    whole = batches(tmp_path / "e")
    whole.load(half.state())
    assert mentions(caplog.text, "train_steps_per_epoch", "rows")
    assert [len(whole), sum(batch.rows for batch in whole), sum(batch.rows for batch in whole)] == [
        4,
        61,
        61,
    ]


@pytest.mark.parametrize(
    ("rows", "size", "lengths"),
    [(65, 2, [16, 17]), (67, 2, [16, 18]), (68, 2, [16, 16, 2]), (1, 2, [1])],
)
def test_no_rank_has_a_batch_of_one_row_if_there_are_more(
    rows: int, size: int, lengths: list[int], tmp_path: Path
) -> None:
    found = list(batches(tmp_path / "a", rows, size=size))
    assert [len(batch.labels[0]) for batch in found] == lengths
