"""What ``from_spark`` says of things that are no DataFrame of Spark. Its work is shown in
tests/spark/test_local.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.data import from_spark


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (
            [1, 2],
            (
                r"this is a list: give spark\.createDataFrame\(it\), or write it to Parquet and use"
                r" from_parquet"
            ),
        ),
        (None, "this is a NoneType: give spark"),
        (
            "a.parquet",
            (
                r"this is a str: for files give spark\.read\.parquet\(path\), or use"
                r" from_parquet\('a\.parquet'\)"
            ),
        ),
        (Path("a"), r"use from_parquet\('a'\)"),
        (SimpleNamespace(toDF=list), r"this is a types\.SimpleNamespace: give its toDF\(\)"),
        (SimpleNamespace(to_spark=list), r"give its to_spark\(\)"),
    ],
)
def test_what_is_no_dataframe_of_spark(frame: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"from_spark takes a DataFrame of Spark, and .*{text}"):
        from_spark(frame)
