"""``prepare_data``: write a DataFrame to a store's folders, for ``fit_on_parquet`` without
arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from farandole.data import Store, plans
from farandole.data.spark import ROW_GROUP
from farandole.data.spark_names import spark_url
from farandole.errors import DataError, SettingsError
from farandole.estimators.spark.split import computed_once, split
from farandole.estimators.spark.validate import check_types
from farandole.estimators.spec import Columns

# the DataFrame, its options, and its folder
_prepared: list[tuple[Any, tuple[Any, ...], Store, int]] = []


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> Iterator[int]:
    """Write training and validation rows to the store's folders.

    Returns the number of the data set, for ``fit_on_parquet(dataset_idx=...)``. The same DataFrame
    with the same columns is written once. A store that has one folder for all numbers, as in
    Horovod programs, holds the data set prepared last.

    ``compress_sparse``, ``verbose``: no effect. The files remain until ``clear_training_cache``.
    """
    if num_processes < 1 or partitions_per_process < 1:
        raise SettingsError(
            f"num_proc={num_processes} and partitions_per_process={partitions_per_process} must"
            " both be > 0"
        )
    if not label_columns:
        raise SettingsError("Parameter label_columns cannot be None or empty")
    columns = Columns(tuple(feature_columns or df.columns), tuple(label_columns), sample_weight_col)
    check_types(df, columns, {})
    how = (columns, validation, store.prefix_path)
    idx = next(
        (number for frame, same, _, number in _prepared if frame is df and same == how), None
    )
    if idx is None:
        with computed_once(df, columns.all, validation) as frame:
            idx = _write(frame, columns, validation, store)
        _prepared.append((df, how, store, idx))
    yield idx


def clear_training_cache() -> None:
    """Remove the files that ``prepare_data`` wrote."""
    while _prepared:
        _clear(*_prepared[-1][2:])


def _write(df: Any, columns: Columns, validation: float | str | None, store: Store) -> int:
    train, held = split(df, columns.all, validation, 0)
    for frame, empty in (
        (train, "the DataFrame has no rows for training"),
        (held, "Validation DataFrame is empty"),
    ):
        if frame is not None and frame.isEmpty():
            raise DataError(empty)
    paths = (store.get_train_data_path, store.get_val_data_path)
    # a program's own store: one folder for all numbers
    if store.get_train_data_path(0) == store.get_train_data_path(1):
        number = 0
        _check_apart(df, [path(number) for path in paths])
        _clear(store, number)
    else:
        number = next(
            each
            for each in itertools.count()
            if not any(store.exists(path(each)) for path in paths)
        )
    try:
        for frame, path in zip((train, held), paths, strict=True):
            if frame is not None:
                frame.write.option("parquet.block.size", ROW_GROUP).mode("error").parquet(
                    spark_url(path(number))
                )
    except BaseException:
        _clear(store, number)
        raise
    return number


def _clear(store: Store, number: int) -> None:
    """Remove a data set and its entry."""
    train = store.get_train_data_path(number)
    store.delete(train)
    store.delete(store.get_val_data_path(number))
    _prepared[:] = [each for each in _prepared if each[2].get_train_data_path(each[3]) != train]


def _check_apart(df: Any, folders: Sequence[str]) -> None:
    """Raise DataError if the rows are read from the folder to be written, which is cleared
    first.
    """
    read = [_plain(url) for url in plans.input_files(df)]
    for folder in folders:
        if any(f"{each}/".startswith(f"{_plain(spark_url(folder))}/") for each in read):
            raise DataError(
                f"the DataFrame reads files of {folder}, which prepare_data would overwrite. Create"
                " the store with another train_path and val_path, or train on these files with"
                " fit_on_parquet"
            )


def _plain(url: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlparse(url).path).rstrip("/")
