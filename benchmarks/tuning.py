"""Predictions on Spark with one setting changed at a time: the model's batch, Arrow's batch,
partitions, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import inference
from benchmarks.inference import Work, computed, conv, mlp
from benchmarks.samples import OURS, Case, interleave

REPETITIONS = 3
ARROW = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Setting(NamedTuple):
    """Settings of a prediction. ``threads``: per task. Two tasks run at a time, or one if there is
    one partition.
    """

    batch: int = 256
    arrow: int = 10_000
    partitions: int = 8
    threads: int = 1

    def __str__(self) -> str:
        """Return the values that differ from the first setting, or all if none does."""
        names = ("batch of", "Arrow batch of", "partitions:", "threads:")
        changed = [
            f"{name} {value}"
            for name, value, usual in zip(names, self, Setting(), strict=True)
            if value != usual
        ]
        every = [f"{name} {value}" for name, value in zip(names, self, strict=True)]
        return ", ".join(changed or every)


SETTINGS = (
    Setting(),
    *(Setting(batch=rows) for rows in (16, 64, 1024, 4096)),
    *(Setting(arrow=rows) for rows in (100, 1_000, 100_000)),
    *(Setting(partitions=number) for number in (2, 32, 128)),
    Setting(threads=2),
    Setting(partitions=1),
    Setting(partitions=1, threads=2),
)
WORKS = (
    Work("small MLP", 500_000, (16,), mlp),
    Work("conv net, images 28x28", 20_000, (1, 28, 28), conv),
)


def cases(quick: bool) -> Iterator[Case]:
    with inference.session() as (spark, folder):
        for work in WORKS:
            chosen = work._replace(rows=inference.QUICK_ROWS) if quick else work
            settings = SETTINGS[::5] if quick else SETTINGS
            frames = {
                number: inference.data(spark, folder, chosen, number)
                for number in sorted({setting.partitions for setting in settings})
            }
            turns = {
                str(each): computed(turn(spark, frames[each.partitions], chosen, each))
                for each in settings
            }
            samples = interleave(turns, repetitions=1 if quick else REPETITIONS)
            for frame in frames.values():
                frame.unpersist()
            for name, seconds in samples.items():
                yield Case("tuning", f"{chosen.name}, {chosen.rows} rows: {name}", {OURS: seconds})


def turn(spark: Any, frame: Any, work: Work, setting: Setting) -> Callable[[], Any]:
    """Return a lazy DataFrame with predictions."""
    import torch

    from farandole.inference import predict_udf

    torch.manual_seed(0)
    options = {"batch_size": setting.batch, "threads": setting.threads, "shapes": [work.shape]}
    predict = predict_udf(work.make().eval(), **options)

    def made() -> Any:
        spark.conf.set(ARROW, setting.arrow)  # for queries planned from now on
        return frame.withColumn("y", predict("x"))

    return made
