"""The driver's own packages as an archive, for hosts that do not have them."""

from __future__ import annotations

import functools
import io
import os
import threading
import zipfile

from farandole.job.launch.agents import boot

# What must be the driver's own: Farandole, the names it goes by, and what functions are pickled
# with (one version of cloudpickle does not read what another has written).
NAMES = ("farandole", "horovod", "sparkdl", "cloudpickle")
_packing = threading.Lock()


@functools.lru_cache(maxsize=1)
def roots() -> dict[str, str]:
    """The folder of each package that is to be the driver's."""
    found = {name: boot.folder_of(name) for name in NAMES}
    return {
        name: root
        for name, root in found.items()
        if root and (name not in ("horovod", "sparkdl") or _is_ours(root))
    }


@functools.lru_cache(maxsize=1)
def digests() -> dict[str, str]:
    """The digest of each of these packages."""
    return {name: boot.digest(name) for name in roots()}


def archive() -> bytes:
    """These packages, zipped. Many hosts may ask for it at once."""
    with _packing:
        return packed()


@functools.lru_cache(maxsize=1)
def packed() -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, root in roots().items():
            for path in boot.sources(root):
                # A fixed time: the same sources are the same archive, which hosts keep.
                entry = zipfile.ZipInfo(os.path.join(name, os.path.relpath(path, root)))
                with open(path, "rb") as file:
                    zipped.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    return found.getvalue()


def bundle() -> tuple[bytes, dict[str, str]]:
    """Both."""
    return archive(), digests()


def _is_ours(root: str) -> bool:
    """Is it farandole-horovod's, and not the real one?"""
    with open(os.path.join(root, "__init__.py"), encoding="utf-8") as file:
        return "farandole" in file.read()
