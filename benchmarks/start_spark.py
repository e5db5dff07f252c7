"""The cost of starting on Spark: HorovodRunner and TorchDistributor on the same function, compared
with a barrier stage that only imports torch in each task. Two executors on this machine, all in one
session. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.samples import BARE_STAGE, OURS, TORCH_DISTRIBUTOR, Case, interleave

REPETITIONS = 7


def cases(size: int, quick: bool) -> Iterator[Case]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master(f"local-cluster[{size},1,1024]").appName(
        "farandole bench"
    )
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        turns = {name: quietly(run) for name, run in contenders(spark.sparkContext, size).items()}
        # The first job of each is not measured: it waits for executors and their Python.
        samples = interleave(turns, repetitions=1 if quick else REPETITIONS, warm_up=not quick)
        yield Case("start", f"no-op job on Spark, {size} ranks", samples)
    finally:
        spark.stop()


def contenders(context: Any, size: int) -> dict[str, Callable[[], Any]]:
    from pyspark.ml.torch.distributor import TorchDistributor

    from farandole.spark import HorovodRunner

    def ours() -> int:
        import farandole.torch as hvd

        hvd.init()
        return int(hvd.size())

    def theirs() -> int:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return dist.get_world_size()

    def bare(tasks: Iterator[int]) -> Iterator[int]:
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return tasks

    def check(found: int) -> None:
        assert found == size

    return {
        OURS: lambda: check(HorovodRunner(np=size).run(ours)),
        TORCH_DISTRIBUTOR: lambda: check(
            TorchDistributor(num_processes=size, local_mode=False, use_gpu=False).run(theirs)
        ),
        BARE_STAGE: lambda: (
            context.parallelize(range(size), size).barrier().mapPartitions(bare).collect()
        ),
    }


def quietly(run: Callable[[], Any]) -> Callable[[], None]:
    """Call ``run`` without its output: both runners print."""

    def silent() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run()

    return silent
