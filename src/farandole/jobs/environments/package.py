"""Farandole in other environments: links to the running installation."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os

PACKAGES = ("farandole", "horovod", "sparkdl", "azureml")
DISTRIBUTIONS = ("farandole", "farandole-horovod", "farandole-azureml")


def requirements() -> list[str]:
    """Return the packages that Farandole requires."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        wanted = importlib.metadata.requires("farandole") or []
        return [each for each in wanted if "extra ==" not in each]
    return ["numpy>=1.23", "cloudpickle>=2.2", "psutil>=5.9", "rich>=13"]


def locations() -> dict[str, str]:
    """Return the paths of Farandole's packages and of their metadata, by name."""
    found = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and _is_ours(spec.origin):
            found[name] = os.path.dirname(os.path.realpath(spec.origin))
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            path = str(getattr(importlib.metadata.distribution(name), "_path", ""))
            if path.endswith(".dist-info"):
                found[os.path.basename(path)] = os.path.realpath(path)
    return found


def _is_ours(origin: str) -> bool:
    with open(origin, encoding="utf-8") as file:
        return "farandole" in file.read()


def identity() -> str:
    """Return a digest of Farandole's version and location."""
    import farandole

    facts = [farandole.__version__, *sorted(locations().values())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def link(folder: str) -> str:
    """Create ``folder`` with a link to each of Farandole's packages, and return ``folder``."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name, path in locations().items():
        with contextlib.suppress(FileExistsError):
            os.symlink(path, os.path.join(folder, name))
    return folder
