"""What the distribution ``farandole-horovod`` needs beyond ``farandole``: Horovod's names for things, and its command.

The packages ``horovod`` and ``sparkdl`` of that distribution hold names alone; what they do is here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, NoReturn

HOROVOD = "0.28.1"  # the version whose API this is: what ``horovod.__version__`` says

_LATER = {
    "spark": "Spark's Estimators and Store (horovod.spark.run and HorovodRunner are there)",
    "ray": "running on Ray (RayExecutor)",
    "elastic": "elastic jobs (State, run, host discovery)",
}


def check_alone(*names: str) -> None:
    """Raise ImportError if the real Horovod (or sparkdl) is installed, too: both would own the same package."""
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"the distribution {name!r} {found.version} is installed in {found.locate_file('')}, and farandole-horovod "
            f"offers the same package. Only one of the two can be there. To run on Farandole: "
            f"pip uninstall -y {name} farandole-horovod && pip install farandole-horovod. To stay with {name}: "
            f"pip uninstall -y farandole-horovod && pip install --force-reinstall {name}",
            name=name,
        )


def not_built(module: str) -> ImportError:
    """The error of importing a module of Horovod that Farandole does not have, in Horovod's words."""
    what = _LATER[module.split(".")[1]]
    return ImportError(
        f"Extension {module} has not been built: this version of Farandole does not have {what} yet. Nothing that is "
        "installed or compiled here would change that; it has horovod.torch.",
        name=module,
    )


def missing(name: str, why: str) -> NotImplementedError:
    """The error of calling something of Horovod that Farandole does not have."""
    return NotImplementedError(f"{name} is not available: this version of Farandole does not have {_LATER[why]} yet")


def stand_in(name: str, why: str) -> Callable[..., NoReturn]:
    """A function that can be imported, and raises the error of ``missing`` when it is called."""

    def raises(*args: Any, **kwargs: Any) -> NoReturn:
        raise missing(name, why)

    raises.__name__ = raises.__qualname__ = name.rpartition(".")[2]
    raises.__doc__ = f"Not available yet: {_LATER[why]}."
    return raises
