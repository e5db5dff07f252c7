"""``horovod.spark.run`` on Farandole."""

from farandole import spark
from farandole.compat import with_note
from farandole.spark import run_elastic

run = with_note(spark.run)

__all__ = ["run", "run_elastic"]
