"""Helpers for the tests of estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from farandole.estimators import Backend
from tests.keras import backends
from tests.run_job import job

ROWS = 61  # which neither ranks nor batches divide


class Pool(Backend):
    """Ranks in warm processes of the tests; with a backend of Keras if it is named."""

    def __init__(self, ranks: int, keras: str = "") -> None:
        self.ranks, self._keras = ranks, keras

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        def body(_: int) -> Any:
            return fn(*args, **(kwargs or {}))

        return backends.on(self._keras, self.ranks, body) if self._keras else job(self.ranks, body)

    def num_processes(self) -> int:
        return self.ranks


class Never(Pool):
    """A backend for errors that come before the start."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("training has started")


def columns(rows: int = ROWS) -> dict[str, np.ndarray]:
    """Return the columns x: three numbers; y: a linear function of x; k: one of three classes; w: a
    weight.
    """
    numbers = np.random.RandomState(1)
    x = numbers.randn(rows, 3)
    return {
        "x": x,
        "y": x @ [1.0, -2.0, 0.5] + 0.3,
        "k": np.argmax(x, axis=1),
        "w": numbers.randint(1, 4, rows) / 2.0,
        "z": numbers.randn(rows),
    }


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            name: list(values) if values.ndim > 1 else values
            for name, values in columns(rows).items()
        }
    )


def written(folder: Path, rows: int = ROWS, name: str = "train.parquet") -> str:
    pq.write_table(table(rows), folder / name, row_group_size=16)
    return str(folder / name)


def weighted(folder: Path, values: Mapping[int, float], **others: Mapping[int, float]) -> str:
    """Write a file with different weights in some rows, and different numbers in other columns."""
    known = table()
    for name, changed in {"w": values, **others}.items():
        column = [changed.get(row, value) for row, value in enumerate(known[name].to_pylist())]
        known = known.set_column(
            known.column_names.index(name), name, pa.array(column, pa.float64())
        )
    pq.write_table(known, folder / "weighted.parquet", row_group_size=16)
    return str(folder / "weighted.parquet")


def frame(spark: Any, rows: int = ROWS) -> Any:
    """Return the columns as a DataFrame."""
    found = columns(rows)
    values = [
        (
            found["x"][row].tolist(),
            float(found["y"][row]),
            int(found["k"][row]),
            float(found["w"][row]),
            float(found["z"][row]),
        )
        for row in range(rows)
    ]
    return spark.createDataFrame(
        values, "x array<double>, y double, k int, w double, z double"
    ).coalesce(2)
