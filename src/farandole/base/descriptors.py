"""Writes to file descriptors."""

from __future__ import annotations

import os


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, in several writes if the system takes only a part.

    Raises OSError, for example for a full disk, after what fits is written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
