from farandole.spark import HorovodRunner

__all__ = ["HorovodRunner"]
