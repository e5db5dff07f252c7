"""Spark runs the kit of launchers."""

from __future__ import annotations

from typing import ClassVar

from tests.kits.launcher import LauncherKit


class TestSpark(LauncherKit):
    options: ClassVar = {"launcher": "spark"}
    before: ClassVar = """
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
    """
