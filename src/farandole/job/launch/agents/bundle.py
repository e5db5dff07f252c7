"""The driver's own packages as an archive, for hosts that do not have them."""

from __future__ import annotations

import functools
import io
import os
import threading
import zipfile

from farandole.job.launch.agents import boot

# Packages that must be the driver's: Farandole, its import names, and cloudpickle, whose versions
# cannot read each other's pickles.
NAMES = ("farandole", "horovod", "sparkdl", "cloudpickle")
_packing = threading.Lock()


@functools.lru_cache(maxsize=1)
def roots() -> dict[str, str]:
    """Return the folder of each package that must be the driver's."""
    found = {name: boot.folder_of(name) for name in NAMES}
    return {
        name: root
        for name, root in found.items()
        if root and (name not in ("horovod", "sparkdl") or _is_ours(root))
    }


@functools.lru_cache(maxsize=1)
def digests() -> dict[str, str]:
    """Return the digest of each of these packages."""
    return {name: boot.digest(name) for name in roots()}


def archive() -> bytes:
    """Return these packages as a zip archive. Safe for simultaneous requests of many hosts."""
    with _packing:
        return packed()


@functools.lru_cache(maxsize=1)
def packed() -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, root in roots().items():
            for path in boot.sources(root):
                # A fixed time gives the same archive for the same sources, and hosts keep archives.
                entry = zipfile.ZipInfo(os.path.join(name, os.path.relpath(path, root)))
                with open(path, "rb") as file:
                    zipped.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    return found.getvalue()


def bundle() -> tuple[bytes, dict[str, str]]:
    """Return the archive and the digests."""
    return archive(), digests()


def _is_ours(root: str) -> bool:
    """Return whether the package is farandole-horovod's rather than the original."""
    with open(os.path.join(root, "__init__.py"), encoding="utf-8") as file:
        return "farandole" in file.read()
