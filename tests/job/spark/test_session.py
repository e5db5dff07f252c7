"""The Spark session of this process, with PySpark's variables but without Spark."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.job.spark import session

RUNNING, STOPPED = SimpleNamespace(_jsc="jvm"), SimpleNamespace(_jsc=None)


def pyspark(monkeypatch: pytest.MonkeyPatch, connects: bool, **names: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(**names))
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace())
    monkeypatch.setitem(
        sys.modules, "pyspark.sql.utils", SimpleNamespace(is_remote=lambda: connects)
    )


@pytest.mark.parametrize(
    ("connects", "active", "expected"),
    [(False, RUNNING, RUNNING), (False, STOPPED, None), (False, None, None), (True, RUNNING, None)],
)
def test_a_context_runs_or_not(
    monkeypatch: pytest.MonkeyPatch, connects: bool, active: Any, expected: Any
) -> None:
    pyspark(monkeypatch, connects, SparkContext=SimpleNamespace(_active_spark_context=active))
    assert session.context() is expected


def test_the_client_of_spark_connect_alone_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark(monkeypatch, True)
    assert session.context() is None
    assert session.files() == ""


def test_a_check_for_sessions_imports_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert session.context() is None
    assert "pyspark" not in sys.modules


def test_a_session_is_started_only_where_it_has_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(
        builder=SimpleNamespace(getOrCreate=lambda: SimpleNamespace(sparkContext=RUNNING))
    )
    for connects, expected in ((False, RUNNING), (True, None)):
        pyspark(monkeypatch, connects, SparkContext=SimpleNamespace(_active_spark_context=None))
        monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(SparkSession=made))
        assert session.started() is expected
