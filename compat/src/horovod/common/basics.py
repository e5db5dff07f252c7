from farandole.compat.basics import HorovodBasics

__all__ = ["HorovodBasics"]
