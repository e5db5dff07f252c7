"""``from_spark`` refuses other objects. Its results are tested in tests/spark/test_local.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.data import from_spark
from tests.kits.messages import mentioning


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ([1, 2], ("list", "spark.createDataFrame(it)", "from_parquet")),
        (None, ("NoneType", "spark")),
        ("a.parquet", ("str", "spark.read.parquet(path)", "from_parquet('a.parquet')")),
        (Path("a"), "from_parquet('a')"),
        (SimpleNamespace(toDF=list), ("types.SimpleNamespace", "toDF()")),
        (SimpleNamespace(to_spark=list), "to_spark()"),
    ],
)
def test_from_spark_refuses_other_objects(frame: Any, text: str | tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=mentioning("from_spark", "DataFrame", text)):
        from_spark(frame)
