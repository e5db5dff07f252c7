"""Credentials, which a local workspace does not need: they are accepted and not used."""

from __future__ import annotations

from typing import Any

from azureml._farandole.texts import notice


class AbstractAuthentication:
    """Credentials of Azure. They are not stored, sent or checked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        notice(f"{type(self).__name__} is not used: the workspace is on this host")

    def get_authentication_header(self) -> dict[str, str]:
        """Return no headers: there is no service to call."""
        return {}


class InteractiveLoginAuthentication(AbstractAuthentication):
    """A login in a browser, which is not opened."""


class ServicePrincipalAuthentication(AbstractAuthentication):
    """The password of a service principal, which is not kept."""


class AzureCliAuthentication(AbstractAuthentication):
    """The login of the command ``az``, which is not needed."""


class MsiAuthentication(AbstractAuthentication):
    """The identity of a virtual machine, which is not needed."""


class TokenAuthentication(AbstractAuthentication):
    """A function that returns tokens, which is not called."""
