"""The first contact of a host with the driver: finding an address of the driver that it reaches."""

from __future__ import annotations

import os

from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.net.interfaces import interfaces
from farandole.net.store import reach

# Seconds for each of the driver's addresses, in two rounds; a host counts as lost after 8 s.
CONTACT = (2.0, 6.0)


def contact(addresses: list[str], secret: str) -> str:
    """Return the first of the driver's addresses that answers and knows the secret; empty if none
    does.
    """
    try:
        client = reach(likeliest_first(addresses), secret, *CONTACT)
    except (AuthenticationError, HorovodInternalError, RendezvousError, OSError):
        return ""
    client.close()
    return client.address


def likeliest_first(addresses: list[str]) -> list[str]:
    """Return the driver's addresses, starting with the one from which ssh connected."""
    came_from = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    return sorted(
        addresses, key=lambda address: address.rpartition(":")[0].strip("[]") != came_from
    )


def no_contact(addresses: list[str]) -> str:
    """Return why this host does not reach the driver at any of ``addresses``."""
    if all(interface.loopback for interface in interfaces()):
        return (
            "it has no address at which the driver and ranks can reach each other (link-local"
            " IPv6 addresses, fe80::..., are not used)"
        )
    return (
        f"it cannot reach any of the driver's addresses ({', '.join(addresses)}): check firewalls"
        " and --network-interfaces"
    )
