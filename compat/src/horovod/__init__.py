"""Horovod's names, implemented by Farandole."""

from farandole.compat import HOROVOD as __version__
from farandole.compat import check_alone, later, speak_as_horovod

check_alone("horovod")
later.install()
speak_as_horovod()

from farandole.compat.runner import run  # noqa: E402

__all__ = ["__version__", "run"]
