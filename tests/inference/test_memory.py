"""More rows than a process may hold do not accumulate in predictions of files. On Spark:
test_spark.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tests.kits.memory import MOST, ROWS, grown, write

PREPARE = """
from farandole.inference import predict_parquet

def predict(path):
    return predict_parquet(lambda x: x.sum(axis=1), path, path + ".out", returns="float").rows

predict({small!r})
"""


def test_rows_of_one_large_row_group_do_not_pile_up(tmp_path: Path) -> None:
    large, small = (
        write(tmp_path / "large.parquet", ROWS, ROWS),
        write(tmp_path / "small.parquet", 2000, 2000),
    )
    assert grown(PREPARE.format(small=small), f"assert predict({large!r}) == {ROWS}") < MOST
    footers = [
        pq.read_metadata(path) for path in sorted((tmp_path / "large.parquet.out").glob("part-*"))
    ]
    assert sum(each.num_rows for each in footers) == ROWS
    sizes = [
        each.row_group(number).total_byte_size
        for each in footers
        for number in range(each.num_row_groups)
    ]
    assert max(sizes) < 24 << 20, "row groups of a size that readers can shuffle"
