"""Batches of an epoch: each row once over all ranks, in one order for any number of ranks, from any
position.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import ParquetData, from_parquet
from farandole.errors import DataError, SettingsError
from tests.kits.messages import mentioning, mentions

ROWS = 1003
SMALL = 1 << 13  # bytes: several lanes, of row groups that do not fit into memory together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files with small row groups; one has no rows."""
    made = tmp_path_factory.mktemp("rows")
    ids = np.arange(ROWS)
    table = pa.table(
        {
            "id": ids,
            "x": pa.array([[row, -row] for row in ids], pa.list_(pa.float32())),
            "w": ids / 1000,
        }
    )
    for number, (begin, end) in enumerate(((0, 400), (400, 400), (400, 990), (990, ROWS))):
        pq.write_table(
            table.slice(begin, end - begin), made / f"{number}.parquet", row_group_size=10
        )
    return made


@pytest.fixture(scope="module")
def data(folder: Path) -> ParquetData:
    return from_parquet(str(folder))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert [
        each.name
        for each in threading.enumerate()
        if each.name.startswith(("farandole-l", "farandole-r"))
    ] == []


def ids(batches: Any) -> list[list[int]]:
    found = []
    for batch in batches:
        assert (batch["x"][:, 0] == batch["id"]).all()
        assert (batch["x"][:, 1] == -batch["id"]).all()
        found.append(batch["id"].tolist())
    return found


def joined(of_ranks: list[list[list[int]]]) -> list[list[int]]:
    """Return the batches of all ranks together: rows in turns."""
    return [sorted(row for batch in step for row in batch) for step in zip(*of_ranks, strict=True)]


@pytest.mark.parametrize(
    "options", [{}, {"memory": SMALL}, {"memory": SMALL, "threads": 0}, {"shuffle": False}]
)
def test_global_batches_are_the_same_for_any_number_of_ranks(
    data: ParquetData, options: Any
) -> None:
    alone = ids(data.numpy(24, rank=0, size=1, **options))
    for size in (2, 3, 4, 6):
        ranks = [data.numpy(24 // size, rank=rank, size=size, **options) for rank in range(size)]
        together = joined([ids(reader) for reader in ranks])
        assert together[:-1] == [sorted(batch) for batch in alone[: len(together) - 1]]
        assert sorted(row for batch in together for row in batch) == list(range(ROWS))
    flat = [row for batch in alone for row in batch]
    assert (flat == list(range(ROWS))) == (options == {"shuffle": False})
    assert sorted(flat) == list(range(ROWS))


def test_epochs_differ_and_are_the_same_again_with_the_same_seed(data: ParquetData) -> None:
    reader = data.numpy(50, memory=SMALL, rank=0, size=1)
    assert reader._lanes == 24
    epochs = [ids(reader) for _ in range(2)]
    assert reader.epoch == 2
    assert epochs[0] != epochs[1]
    reader.set_epoch(0)
    assert ids(reader) == epochs[0]
    assert ids(data.numpy(50, memory=SMALL, rank=0, size=1, seed=7)) != epochs[0]
    for batch in reader:  # left early: the epoch restarts
        assert batch["id"].tolist() == epochs[1][0]
        break
    assert ids(reader) == epochs[1]
    blocks = {row // 10 for row in epochs[0][0]}
    assert len(blocks) >= 10  # a batch has rows of many row groups


@pytest.mark.parametrize("options", [{}, {"memory": SMALL}])
def test_an_epoch_continues_on_a_different_number_of_ranks(data: ParquetData, options: Any) -> None:
    whole = [row for batch in ids(data.numpy(1, rank=0, size=1, **options)) for row in batch]
    three = [data.numpy(8, rank=rank, size=3, **options) for rank in range(3)]
    seen: list[int] = []
    for reader in three:
        batches = iter(reader)
        seen += [row for _ in range(5) for row in next(batches)["id"].tolist()]
        batches.close()
    state = three[2].state_dict()
    order = state.pop("order")
    assert state == {"epoch": 0, "position": 120, "rows": ROWS, "seed": 0}
    state["order"] = order
    assert three[0].state_dict(steps=2)["position"] == 48
    assert sorted(seen) == sorted(whole[:120])
    two = [data.numpy(16, rank=rank, size=2, **options) for rank in range(2)]
    for reader in two:
        reader.load_state_dict(state)
        reader.set_epoch(state["epoch"])
        seen += [row for batch in ids(reader) for row in batch]
        assert reader.state_dict() == {**state, "epoch": 1, "position": 0}
    assert sorted(seen) == list(range(ROWS))
    other = data.numpy(16, rank=0, size=1, **{**options, "memory": SMALL * 4 if options else SMALL})
    for reader, theirs in ((two[0], {**state, "seed": 5}), (other, state)):
        with pytest.raises(
            DataError,
            match=mentioning("order", "seed=", "shuffle="),
        ):
            reader.load_state_dict(theirs)


def test_the_state_of_files_in_their_order_knows_no_memory(data: ParquetData) -> None:
    states = [
        data.numpy(8, shuffle=False, memory=memory).state_dict() for memory in (SMALL, 1 << 28)
    ]
    assert states[0] == states[1] != data.numpy(8).state_dict()


def test_the_next_epoch_follows_a_rest_that_a_larger_job_drops(data: ParquetData) -> None:
    state = data.numpy(100, even="drop", rank=0, size=1).state_dict(steps=9)
    larger = [data.numpy(100, even="drop", rank=rank, size=2) for rank in range(2)]
    expected = data.numpy(200, even="drop", rank=0, size=1)
    expected.set_epoch(1)
    for reader in larger:
        reader.load_state_dict(state)
        assert len(reader) == 5
    assert joined([ids(reader) for reader in larger]) == [sorted(batch) for batch in ids(expected)]
    assert [reader.epoch for reader in larger] == [2, 2]


def test_the_state_after_the_last_batch_is_the_next_epoch(data: ParquetData) -> None:
    for even in ("exact", "drop"):
        reader = data.numpy(250, even=even, rank=0, size=2)
        batches = iter(reader)
        for _ in range(len(reader)):
            next(batches)
        assert reader.state_dict()["epoch"] == reader.epoch == 1  # no further one was requested
        assert [*batches] == []
        # training is behind: the loop that ended counts
        position = reader.state_dict(steps=1)["position"]
        assert (
            position,
            reader.state_dict(steps=1)["epoch"],
            reader.state_dict(steps=0)["epoch"],
        ) == (500, 0, 0)
        reader.set_epoch(1)
        assert reader.state_dict(steps=0)["epoch"] == 1


def test_ranks_have_equally_many_batches_for_each_even(data: ParquetData) -> None:
    lengths = {}
    for even in ("exact", "pad", "drop"):
        ranks = [
            [len(batch["id"]) for batch in data.numpy(200, even=even, rank=rank, size=2)]
            for rank in range(2)
        ]
        lengths[even] = ranks
    assert lengths == {
        "exact": [[200, 200, 102], [200, 200, 101]],
        "pad": [[200] * 3] * 2,
        "drop": [[200] * 2] * 2,
    }
    assert [
        [len(batch["id"]) for batch in data.numpy(167, rank=rank, size=2)] for rank in range(2)
    ] == [
        [167, 167, 168],
        [167, 167, 167],
    ]
    padded = [
        row
        for rank in range(2)
        for batch in data.numpy(200, even="pad", rank=rank, size=2)
        for row in batch["id"].tolist()
    ]
    assert set(padded) == set(range(ROWS))


def test_weights_make_averages_over_ranks_those_of_one_process(folder: Path) -> None:
    data = from_parquet(str(folder), features=["id"], labels=["x"], weight="w")
    for size, batch in ((2, 400), (3, 334), (4, 250)):
        sums = []
        for rank in range(size):
            reader = data.numpy(batch, even="weights", rank=rank, size=size)
            sums.append([float(np.mean(weight * id_)) for id_, _, weight in reader])
            assert {len(id_) for id_, _, _ in reader} == {batch}
        means = np.mean(sums, axis=0)
        rows = [id_ for id_, _, _ in data.numpy(batch * size, rank=0, size=1)]
        np.testing.assert_allclose(means, [np.mean(id_ * id_ / 1000) for id_ in rows], rtol=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_nan_weight_is_reported(tmp_path: Path, wrong: float) -> None:
    weights = np.ones(100)
    weights[5] = -2.0  # which is one
    weights[77] = wrong
    pq.write_table(
        pa.table({"x": range(100), "w": weights}), tmp_path / "0.parquet", row_group_size=10
    )
    data = from_parquet(tmp_path, features="x", labels="x", weight="w")
    for memory in (100, 1 << 20):
        with pytest.raises(
            DataError,
            match=mentioning("0.parquet", "row 77", "'w'"),
        ):
            list(data.numpy(10, rank=0, size=1, memory=memory))
    assert (
        len(list(from_parquet(tmp_path, features="x", labels="w").numpy(10, rank=0, size=1))) == 10
    )


def test_a_weight_is_one_number_in_any_shape(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3], "w": [[1.0], [2.0], [3.0]]}), tmp_path / "a.parquet")
    data = from_parquet(tmp_path, features="x", labels="x", weight="w")
    for even in ("exact", "weights"):
        (batch,) = data.numpy(4, even=even, shuffle=False, rank=0, size=1)
        scale = 4 / 3 if even == "weights" else 1
        np.testing.assert_allclose(batch[2][:3], np.array([1, 2, 3]) * scale, rtol=1e-6)


def test_fewer_rows_than_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": [5, 6]}), tmp_path / "two.parquet")
    data = from_parquet(str(tmp_path))
    with caplog.at_level(logging.WARNING, "farandole"):
        found = [
            [batch["id"].tolist() for batch in data.numpy(2, rank=rank, size=3)]
            for rank in range(3)
        ]
    assert mentions(caplog.text, "2 rows", "3")
    assert [len(batches) for batches in found] == [1, 1, 1]
    assert {5, 6} == {row for batches in found for batch in batches for row in batch}
    weights = [
        weight.tolist()
        for rank in range(3)
        for _, weight in data.numpy(2, even="weights", rank=rank, size=3)
    ]
    assert weights == [[3.0, 0.0], [3.0, 0.0], [0.0, 0.0]]
    with pytest.raises(
        DataError,
        match=mentioning("2 rows", "3", "even='drop'"),
    ):
        list(data.numpy(2, even="drop", rank=0, size=3))


def test_a_pickled_handle_includes_its_metadata(
    data: ParquetData, folder: Path, monkeypatch: Any
) -> None:
    there = pickle.loads(pickle.dumps(data))
    assert there.scan == data.scan
    monkeypatch.setenv("FARANDOLE_RANK", "1")  # a rank, as a launcher starts it
    monkeypatch.setenv("FARANDOLE_SIZE", "2")
    assert ids(there.numpy(50)) == ids(data.numpy(50, rank=1, size=2))
    assert [column.name for column in from_parquet(str(folder), columns=["x"]).columns] == ["x"]


def test_a_handle_of_some_of_the_columns(folder: Path) -> None:
    whole = from_parquet(str(folder), features="x", labels="id", weight="w")
    part = whole.only(["id", "w"])
    (batch,) = part.numpy(ROWS, shuffle=False)
    assert list(batch) == ["id", "w"]
    assert batch["id"].tolist() == list(range(ROWS))
    assert [column.name for column in whole.columns] == ["x", "id", "w"]


def test_a_changed_file_is_an_error_in_the_next_epoch(
    tmp_path: Path,
) -> None:
    part = tmp_path / "part.parquet"

    def write(begin: int) -> None:
        table = pa.table({"id": range(begin, begin + 100)})
        pq.write_table(table, part, row_group_size=10, compression="none", use_dictionary=False)

    write(200)
    data = from_parquet(str(tmp_path))
    there = pickle.dumps(data)
    reader = data.numpy(10, rank=0, size=1, memory=100)
    assert sum(len(batch["id"]) for batch in reader) == 100
    before = part.stat()
    write(900)  # of the same size: only the time tells
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert part.stat().st_size == before.st_size
    for each in (reader, pickle.loads(there).numpy(10)):
        with pytest.raises(DataError, match=mentioning("part.parquet", "handle")):
            list(each)
    part.write_bytes(b"no such thing")
    with pytest.raises(DataError, match=mentioning("part.parquet", "13 bytes")):
        list(reader)
    part.unlink()
    with pytest.raises(DataError, match=mentioning("part.parquet", "none")):
        list(data.numpy(10, rank=0, size=1))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("memory", [10_000, 100_000])
def test_a_file_rewritten_in_place_while_read_is_noticed(
    tmp_path: Path, memory: int, threads: int
) -> None:
    """pyarrow returns fewer rows of a truncated file, without an error."""
    part = tmp_path / "part.parquet"
    pq.write_table(pa.table({"id": range(100_000)}), part, row_group_size=1000)
    batches = iter(
        from_parquet(str(part)).numpy(10, rank=0, size=1, memory=memory, threads=threads)
    )
    next(batches)
    pq.write_table(pa.table({"id": range(7)}), part)
    with pytest.raises(DataError, match=mentioning("part.parquet", "handle")):
        list(batches)


def test_several_files_and_folders_of_keys(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"id": [year, year + 1]}), tmp_path / f"year={year}" / "a.parquet")
    batch = next(iter(from_parquet(f"file://{tmp_path}").numpy(4, shuffle=False)))
    assert {name: array.tolist() for name, array in batch.items()} == {
        "id": [2023, 2024, 2024, 2025],
        "year": [2023, 2023, 2024, 2024],
    }
    (tmp_path / "year=__HIVE_DEFAULT_PARTITION__").mkdir()
    pq.write_table(
        pa.table({"id": [7]}), tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "a.parquet"
    )
    with pytest.raises(DataError, match=r"row 0, column 'year': null; give fill={'year': value}"):
        next(iter(from_parquet(str(tmp_path)).numpy(5)))
    batch = next(iter(from_parquet(str(tmp_path), fill={"year": -1}).numpy(5, shuffle=False)))
    assert (batch["year"].tolist(), batch["year"].dtype) == ([2023, 2023, 2024, 2024, -1], np.int32)
    files = [str(tmp_path / "year=2024" / "a.parquet"), str(tmp_path / "year=2023" / "a.parquet")]
    assert next(iter(from_parquet(files, columns=["id"]).numpy(9)))["id"].size == 4


def test_batches_are_tuples_where_labels_are_named(folder: Path) -> None:
    x, y = next(iter(from_parquet(str(folder), features="x", labels="id").numpy(5)))
    assert (x.shape, y.shape) == ((5, 2), (5,))
    x, y, w = next(
        iter(from_parquet(str(folder), features=["x", "w"], labels=["id"], weight="w").numpy(5))
    )
    assert list(x) == ["x", "w"]
    np.testing.assert_allclose(w, y / 1000, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"even": "odd"},
            ("even='odd'", "rows"),
        ),
        ({"batch_size": 0}, ("batch_size=0", "1", "number")),
        ({"batch_size": 2.5}, ("batch_size=2.5", "1", "number")),
        ({"threads": "2"}, ("threads='2'", "0", "number")),
        ({"seed": None}, ("seed=None", "number")),
        ({"memory": -5}, ("memory=-5", "0", "number")),
        ({"memory": "1 GB"}, ("memory='1 GB'", "0", "number")),
        ({"memory": 0.5}, ("memory=0.5", "number")),
        ({"shuffle": "no"}, "shuffle='no'"),
        ({"shuffle": None}, "shuffle=None"),
        ({"rank": 1}, ("rank=1", "size=None")),
        ({"rank": 2, "size": 2}, ("rank=2", "size=2", "0", "1")),
    ],
)
def test_options_that_cannot_be(
    data: ParquetData, options: Any, text: str | tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError, match=mentioning(text)):
        data.numpy(**{"batch_size": 2, **options})


def test_whole_numbers_of_numpy_are_those_of_python(data: ParquetData) -> None:
    mine, numpys = data.numpy(200, seed=5), data.numpy(np.uint8(200), seed=np.int32(5))
    numpys.set_epoch(np.int32(0))
    assert ids(mine) == ids(numpys)
    assert mine.state_dict() == numpys.state_dict()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"position": 1.5}, ("position=1.5", "0", "number")),
        ({"position": -3}, ("position=-3", "0", "number")),
        (
            {"position": ROWS},
            (f"position={ROWS}", f"{ROWS} rows"),
        ),
        ({"epoch": -1}, ("epoch=-1", "0", "number")),
    ],
)
def test_a_state_that_cannot_be(
    data: ParquetData, changes: dict[str, Any], text: str | tuple[str, ...]
) -> None:
    reader = data.numpy(10)
    with pytest.raises(ValueError, match=mentioning(text)):
        reader.load_state_dict({**reader.state_dict(), **changes})


def test_a_reader_continues_where_its_pickle_is_opened(data: ParquetData) -> None:
    reader = data.numpy(10)
    list(reader)
    there = pickle.loads(pickle.dumps(reader))
    assert ids(there) == ids(reader)


def test_the_benchmark_reads_its_own_output() -> None:
    from benchmarks import data as benchmark
    from benchmarks import report
    from benchmarks.samples import DATALOADER, KEPT, OURS, ROW_BY_ROW, SHUFFLED, STEPS

    reading, steps = benchmark.cases(quick=True)
    assert {OURS, KEPT, DATALOADER, SHUFFLED, ROW_BY_ROW} <= reading.samples.keys()
    assert {OURS, KEPT, DATALOADER, STEPS} <= steps.samples.keys()
    assert SHUFFLED in report.text([reading, steps])


@pytest.mark.parametrize("threads", [0, 2])
def test_epochs_reuse_memory_and_concurrent_loops_have_their_own(
    data: ParquetData, threads: int
) -> None:
    reader = data.numpy(10, memory=SMALL, threads=threads)
    kept = [batch["id"].copy() for batch in reader]
    (slots,) = reader._spare
    fresh = data.numpy(10, memory=SMALL, threads=threads)
    for epoch in (1, 2, 3):
        reader.set_epoch(epoch)
        for _, _ in zip(reader, range(5), strict=False):
            pass  # broken off
        reader.set_epoch(epoch)
        fresh.set_epoch(epoch)
        one, other = iter(reader), iter(reader)
        expected = ids(fresh)
        assert ids(next(each) for _ in range(len(expected)) for each in (one, other)) == [
            batch for batch in expected for _ in range(2)
        ]
        one.close(), other.close()
        assert len(reader._spare) == 1
    reader.set_epoch(0)
    assert [batch["id"].tolist() for batch in reader] == [batch.tolist() for batch in kept]
    assert slots.size == reader._spare[0].size


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
@pytest.mark.parametrize(("memory", "threads"), [(SMALL, 1), (1 << 30, 1), (SMALL, 0)])
def test_a_loop_continued_in_a_fork_is_an_error(
    data: ParquetData, memory: int, threads: int
) -> None:
    """It would wait forever."""
    loop = iter(data.numpy(5, memory=memory, threads=threads, rank=0, size=1))
    next(loop)
    child = os.fork()
    if not child:
        signal.alarm(60)
        error_text = ""
        try:
            list(loop)
        except DataError as error:
            error_text = str(error)
        os._exit(0 if ("threads=0" in error_text) is (threads > 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(len(batch["id"]) for batch in loop) == ROWS - 5


@pytest.mark.parametrize("memory", [SMALL, 1 << 30], ids=["read anew", "kept"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_left_to_the_program(data: ParquetData, memory: int, shuffle: bool) -> None:
    reader = data.numpy(5, memory=memory, shuffle=shuffle, rank=0, size=1)
    expected = [batch["x"].copy() for batch in reader]
    for _ in range(2):
        reader.set_epoch(0)
        for batch, rows in zip(reader, expected, strict=True):
            assert (batch["x"] == rows).all()
            for array in batch.values():
                array *= 0


@pytest.mark.parametrize(
    ("cores", "local_size", "threads"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (8, 2, 2), (8, 4, 1)]
)
def test_threads_do_not_outnumber_the_cores_of_a_rank(
    data: ParquetData, monkeypatch: pytest.MonkeyPatch, cores: int, local_size: int, threads: int
) -> None:
    monkeypatch.setattr("farandole.data.parquet.reader.cores", lambda: cores)
    monkeypatch.setenv("FARANDOLE_RANK", "0")
    monkeypatch.setenv("FARANDOLE_LOCAL_SIZE", str(local_size))
    monkeypatch.setenv("FARANDOLE_SIZE", str(local_size))
    assert data.numpy(5)._readers() == threads
    assert data.numpy(5, threads=7)._readers() == 7
