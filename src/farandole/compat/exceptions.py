"""``horovod.common.exceptions``."""

from __future__ import annotations

from typing import Any

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the message of HorovodVersionMismatchError."""
    return (
        f"Framework {name} installed with version {installed_version} but found version"
        f" {version}.\nThis can result in unexpected behavior including runtime errors."
    )


class HorovodVersionMismatchError(ImportError):
    """An error for programs that catch it; it is never raised.

    Horovod raised it if a framework's version differed from the one it was compiled for. Nothing is
    compiled here.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.version, self.installed_version)
