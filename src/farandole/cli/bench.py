"""``farandole bench``: runs the benchmarks, which are next to ``src`` in a clone but not in the
wheel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from farandole.base.package import PARENT
from farandole.errors import SettingsError


def parser() -> Any:
    return _benchmarks().parser()


def main(arguments: Sequence[str]) -> int:
    return int(_benchmarks().main(list(arguments)) or 0)


def _benchmarks() -> Any:
    for root in (os.path.dirname(PARENT), os.getcwd()):
        if os.path.isfile(os.path.join(root, "benchmarks", "__main__.py")):
            sys.path.insert(0, root)
            break
    try:
        import benchmarks.__main__ as found
    except ImportError as error:
        raise SettingsError(
            f"the benchmarks cannot be imported ({error}): the installed package does not contain"
            " them. In a clone of the project, run: pip install -e '.[bench]' && farandole bench"
        ) from error
    return found
