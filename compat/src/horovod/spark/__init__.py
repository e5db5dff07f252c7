"""``horovod.spark.run`` on Farandole."""

from farandole import spark
from farandole.compat import telling
from farandole.spark import run_elastic

run = telling(spark.run)

__all__ = ["run", "run_elastic"]
