from farandole.estimators.spark.prepare import clear_training_cache, prepare_data

__all__ = ["clear_training_cache", "prepare_data"]
