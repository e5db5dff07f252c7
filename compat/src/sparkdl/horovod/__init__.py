from farandole.spark import log_to_driver

__all__ = ["log_to_driver"]
