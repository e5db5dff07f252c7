from farandole.spark.keras import LogCallback

__all__ = ["LogCallback"]
