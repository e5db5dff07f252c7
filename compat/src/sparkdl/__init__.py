"""``from sparkdl import HorovodRunner``, implemented by Farandole."""

from farandole.compat import SPARKDL as __version__
from farandole.compat import check_alone, later

check_alone("sparkdl")
later.install()

from farandole.spark import HorovodRunner  # noqa: E402

__getattr__ = later.attribute_of_sparkdl

__all__ = ["HorovodRunner", "__version__"]
