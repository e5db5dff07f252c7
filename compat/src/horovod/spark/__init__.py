"""``horovod.spark.run`` and ``run_elastic`` on Farandole."""

from farandole import spark
from farandole.compat import with_note

run = with_note(spark.run)
run_elastic = with_note(spark.run_elastic)

__all__ = ["run", "run_elastic"]
