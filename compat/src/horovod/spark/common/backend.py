from farandole.estimators.backend import Backend, LocalBackend, SparkBackend

default_num_proc = SparkBackend.default_num_proc

__all__ = ["Backend", "LocalBackend", "SparkBackend", "default_num_proc"]
