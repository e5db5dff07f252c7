"""``from sparkdl import HorovodRunner``, on Farandole."""

from farandole.compat import check_alone

check_alone("sparkdl")

from farandole.spark import HorovodRunner  # noqa: E402

__all__ = ["HorovodRunner"]
