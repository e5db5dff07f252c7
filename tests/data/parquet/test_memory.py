"""More rows than a reader may hold do not accumulate."""

from __future__ import annotations

from pathlib import Path

from tests.kits.memory import MOST, ROWS, WIDTH, grown, write

PREPARE = """
from farandole.data import from_parquet

def rows(path, memory):
    return sum(len(batch["x"]) for batch in from_parquet(path).numpy(256, memory=memory, rank=0, size=1))

rows({small!r}, {memory})
"""


def test_shuffled_rows_do_not_pile_up(tmp_path: Path) -> None:
    large, small = (
        write(tmp_path / "large.parquet", ROWS, 1000),
        write(tmp_path / "small.parquet", 2000, 1000),
    )
    found = {}
    for memory in (32 << 20, 1 << 30):
        prepare = PREPARE.format(small=small, memory=memory)
        found[memory] = grown(prepare, f"assert rows({large!r}, {memory}) == {ROWS}")
    assert found[32 << 20] < MOST
    assert found[1 << 30] > ROWS * WIDTH * 4, "with memory for all they stay"


def test_memory_limits_how_many_row_groups_are_read_ahead(tmp_path: Path) -> None:
    group = ROWS // 5  # 40 MB
    large, small = (
        write(tmp_path / "large.parquet", ROWS, group),
        write(tmp_path / "small.parquet", 2000, 1000),
    )
    prepare = PREPARE.format(small=small, memory=64 << 20)
    assert grown(prepare, f"assert rows({large!r}, {64 << 20}) == {ROWS}") < 4 * group * WIDTH * 4


def test_a_reader_takes_little_memory_besides_shuffled_rows(tmp_path: Path) -> None:
    """Decoded and returned batches, and memory that allocators keep. The latter depends on the
    timing of threads, so the least of three runs is compared.
    """
    large, small = (
        write(tmp_path / "large.parquet", 2 * ROWS, 4096),
        write(tmp_path / "small.parquet", 4096, 4096),
    )
    prepare = PREPARE.format(small=small, memory=64 << 20)
    work = f"assert rows({large!r}, {64 << 20}) == {2 * ROWS}"
    assert min(grown(prepare, work) for _ in range(3)) < 108 << 20
