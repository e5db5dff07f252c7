from farandole.compat import not_built

raise not_built("horovod.spark.keras")
