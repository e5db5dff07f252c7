"""``horovod.spark.run`` on Farandole."""

from farandole.spark import run, run_elastic

__all__ = ["run", "run_elastic"]
