"""The first contact of a host with the driver: finding an address of the driver that it reaches."""

from __future__ import annotations

import os

from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.net.interfaces import interfaces
from farandole.net.store import reach

# Seconds for each of the driver's addresses, in two rounds; a host counts as lost after 8 s.
CONTACT = (2.0, 6.0)


def contact(addresses: list[str], secret: str) -> str:
    """Return the driver's address that answers and knows the secret; empty if none does."""
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
            "it has no address by which driver and ranks could reach each other (IPv6 addresses of"
            " one link, fe80::..., do not count)"
        )
    return (
        f"it reaches none of the driver's addresses ({', '.join(addresses)}): a firewall stands"
        " between, or --network-interfaces names the wrong ones"
    )
