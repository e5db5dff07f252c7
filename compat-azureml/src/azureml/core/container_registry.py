"""The address of a registry of container images."""

from __future__ import annotations


class ContainerRegistry:
    """The address and the credentials of a registry, which are not used: runs have no images."""

    def __init__(
        self,
        address: str | None = None,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
        self.address = address
        self.username = username
        self.password = password
        self.identity = None
