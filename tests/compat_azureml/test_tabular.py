"""Tables: CSV, Parquet and JSON files as a DataFrame of pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("fsspec", reason="fsspec is not installed")

from azureml.core import Dataset, Workspace  # noqa: E402
from azureml.data.dataset_error_handling import DatasetExecutionError  # noqa: E402
from azureml.data.dataset_factory import DataType  # noqa: E402

from farandole.job.runs.home import RunsHome  # noqa: E402
from tests.compat_azureml.data import write  # noqa: E402
from tests.kits.messages import mentioning  # noqa: E402


@pytest.fixture(scope="module")
def workspace(home: RunsHome) -> Any:
    return Workspace("subscription", "group", "tables")


def rows(dataset: Any) -> list[dict[str, Any]]:
    return list(dataset.to_pandas_dataframe().to_dict("records"))


def test_delimited_files_are_one_table(tmp_path: Path) -> None:
    write(tmp_path / "t" / "1.csv", "id,name\n1,a\n2,b\n")
    write(tmp_path / "t" / "2.csv", "id,name\n3,c\n")
    table = Dataset.Tabular.from_delimited_files(f"{tmp_path}/t/*.csv", include_path=True)
    assert rows(table.keep_columns(["id", "Path"]).skip(1)) == [
        {"id": 2, "Path": "/1.csv"},
        {"id": 3, "Path": "/2.csv"},
    ]
    assert rows(table.drop_columns("Path").take(1)) == [{"id": 1, "name": "a"}]
    first, rest = table.random_split(0.5, seed=3)
    assert len(rows(first)) + len(rows(rest)) == 3
    with pytest.raises(DatasetExecutionError, match=mentioning("'age'", "id, name")):
        rows(table.keep_columns("age"))


def test_types_of_columns(tmp_path: Path) -> None:
    source = str(write(tmp_path / "t.csv", "1;007;2020-01-02\nx;008;no\n"))
    table = Dataset.Tabular.from_delimited_files(
        source,
        separator=";",
        header=False,
        infer_column_types=False,
        set_column_types={"Column1": DataType.to_float(), "Column3": DataType.to_datetime()},
    )
    frame = table.to_pandas_dataframe()
    assert frame["Column2"].tolist() == ["007", "008"]
    assert frame["Column1"].isna().tolist() == [False, True]
    assert frame["Column3"].iloc[0] == pandas.Timestamp("2020-01-02")
    assert frame["Column3"].isna().tolist() == [False, True]


def test_booleans_and_texts_with_missing_values(tmp_path: Path) -> None:
    source = str(write(tmp_path / "t.csv", "flag,on,count,name\nFalse,0,2,a\nTRUE ,1,,\n,1,0,c\n"))
    kinds = {name: DataType.to_bool() for name in ("flag", "on", "count")}
    table = Dataset.Tabular.from_delimited_files(
        source, set_column_types={**kinds, "name": DataType.to_string()}
    )
    frame = table.to_pandas_dataframe()
    assert frame["flag"].tolist() == [False, True, pandas.NA]
    assert (frame["on"].tolist(), frame["on"].dtype) == ([False, True, True], bool)
    assert frame["count"].tolist() == [True, pandas.NA, False]
    assert frame["name"].isna().tolist() == [False, True, False]
    absent = Dataset.Tabular.from_delimited_files(source, set_column_types={"age": kinds["on"]})
    with pytest.raises(DatasetExecutionError, match=mentioning("'age'", "flag", "name")):
        absent.to_pandas_dataframe()


def test_tables_in_other_formats(workspace: Any, tmp_path: Path) -> None:
    lines = str(write(tmp_path / "t.jsonl", '{"a": 1}\n{"a": 2}\n'))
    table = Dataset.Tabular.from_json_lines_files(lines)
    assert rows(table) == [{"a": 1}, {"a": 2}]
    (parquet,) = table.to_parquet_files().download(str(tmp_path / "copies"))
    assert rows(Dataset.Tabular.from_parquet_files(parquet)) == rows(table)
    csv = table.take(1).to_csv_files()
    assert [Path(each).read_text() for each in csv.download(str(tmp_path / "csv"))] == ["a\n1\n"]
    store = workspace.get_default_datastore()
    Dataset.Tabular.register_pandas_dataframe(table.to_pandas_dataframe(), (store, "tables"), "t")
    assert rows(Dataset.get_by_name(workspace, "t")) == rows(table)
    with pytest.raises(DatasetExecutionError, match=mentioning("t.jsonl", "parquet")):
        rows(Dataset.Tabular.from_parquet_files(lines))
