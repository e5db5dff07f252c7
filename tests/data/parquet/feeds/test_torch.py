"""A reader for PyTorch: tensors, DataLoaders, and the position of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import ParquetData, from_parquet
from farandole.errors import DataError, SettingsError
from tests.kits.messages import mentioning

torch = pytest.importorskip("torch")


@pytest.fixture
def data(tmp_path: Path) -> ParquetData:
    pq.write_table(pa.table({"x": np.arange(10.0), "y": np.arange(10)}), tmp_path / "a.parquet")
    return from_parquet(str(tmp_path), features="x", labels="y")


def test_tensors_of_each_row_once(data: ParquetData) -> None:
    batches = data.torch(4, rank=0, size=1)
    assert len(batches) == 3
    found = list(torch.utils.data.DataLoader(batches, batch_size=None, num_workers=0))
    assert [x.tolist() for x, _ in found] == [y.tolist() for _, y in found]
    assert [len(y) for _, y in found] == [4, 4, 2]
    expected = [y.tolist() for _, y in data.numpy(4, rank=0, size=1)]
    assert [y.tolist() for _, y in found] == expected
    found[0][0].zero_()  # tensors are the program's own


def test_workers_are_refused(data: ParquetData) -> None:
    loader = torch.utils.data.DataLoader(
        data.torch(4, rank=0, size=1), batch_size=None, num_workers=1
    )
    with pytest.raises(
        SettingsError,
        match=mentioning("num_workers=1", "num_workers=0"),
    ):
        next(iter(loader))


def test_the_position_of_training_is_kept_in_the_state(data: ParquetData) -> None:
    batches = data.torch(4, rank=0, size=1)
    for _ in batches:
        break
    later = data.torch(3, rank=0, size=1)
    later.load_state_dict(batches.state_dict())
    assert later.state_dict(steps=1)["position"] == 7
    assert sum(len(y) for _, y in later) == 6
    later.set_epoch(5)
    assert later.state_dict()["epoch"] == 5


def test_text_has_no_tensors(tmp_path: Path) -> None:
    pq.write_table(pa.table({"word": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=mentioning("'word'", "PyTorch")):
        next(iter(from_parquet(str(tmp_path)).torch(1)))
