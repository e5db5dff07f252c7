"""The networks of this host: which addresses others may reach it by, in the order in which they should be tried.

A host with several interfaces, one of them dead or not routable, is normal. Nobody knows which of them leads where
before somebody has tried, so each side offers all of its addresses and the other finds the one that answers.
"""

from __future__ import annotations

import fcntl
import functools
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from farandole.config import content
from farandole.errors import SettingsError, did_you_mean

_ADDRESS, _MASK, _FLAGS = 0x8915, 0x891B, 0x8913  # SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFFLAGS
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # IFF_*; an interface without a carrier is not running


class Interface(NamedTuple):
    """``address``: its (first) IPv4 address; ``prefix``: how many bits of it name the network; ``speed``: Mbit/s, 0 if
    nobody knows."""

    name: str
    address: str
    prefix: int
    speed: int = 0
    loopback: bool = False

    @property
    def network(self) -> str:
        return network_of(self.address, self.prefix)


def network_of(address: str, prefix: int) -> str:
    """``10.1.2.3`` with 24 as ``10.1.2.0/24``."""
    import ipaddress  # here: a job on one host does not pay for it

    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


def interfaces() -> list[Interface]:
    """Those of this host that are up, have a carrier and an IPv4 address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            ask = struct.pack("256s", name.encode()[:15])
            try:
                (flags,) = struct.unpack_from("=H", fcntl.ioctl(sock, _FLAGS, ask), 16)
                address = socket.inet_ntoa(fcntl.ioctl(sock, _ADDRESS, ask)[20:24])
                mask = fcntl.ioctl(sock, _MASK, ask)[20:24]
            except OSError:  # it has no IPv4 address
                continue
            if flags & _UP and flags & _RUNNING:
                prefix = int.from_bytes(mask, "big").bit_count()
                found.append(Interface(name, address, prefix, _speed(name), bool(flags & _LOOPBACK)))
    return found


def _speed(name: str) -> int:
    text = content(f"/sys/class/net/{name}/speed").strip()
    return int(text) if text.isdigit() else 0


def chosen(found: Iterable[Interface], names: str = "", near: str = "") -> list[Interface]:
    """The interfaces to offer, the one to try first in front. Pure.

    ``names``: the user's own list ("eth0,ib0"), in its order; without it all but the loopback, the fastest first, and
    of equally fast ones the one with the address ``near`` first. Raises SettingsError for names that are not here.
    """
    known = {interface.name: interface for interface in found}
    if names:
        wanted = [name.strip() for name in names.split(",")]
        for name in wanted:
            if name not in known:
                near_it = did_you_mean(name, known)
                raise SettingsError(
                    f"--network-interfaces {names}: this host ({socket.gethostname()}) has no interface {name!r} that "
                    f"is up and has an address (it has {', '.join(known) or 'none'}){near_it}"
                )
        return [known[name] for name in wanted]
    outside = [interface for interface in known.values() if not interface.loopback]
    return sorted(outside, key=lambda interface: (-interface.speed, interface.address != near))


def offered(near: str, names: str = "") -> str:
    """The addresses for others to try, with commas between ("10.1.2.3/24,192.168.7.3/16"). ``near``: our address
    towards the driver; ``names``: see ``chosen``. A job with its driver on the loopback is all on this host."""
    if near.startswith("127.") and not names:
        return near
    found = [f"{interface.address}/{interface.prefix}" for interface in chosen(interfaces(), names, near)]
    known = names or any(parted(address)[0] == near for address in found)
    return ",".join(found if known else [*found, near])


def is_here(host: str) -> bool:
    """Is ``host`` a name or an address of this machine?"""
    if host in ("localhost", socket.gethostname()) or host.startswith("127."):
        return True
    own = {interface.address for interface in interfaces()}
    if host in own:
        return True
    found = {address for address in _resolved(host) if not address.startswith("127.")}  # Debian: 127.0.1.1 box.lab box
    return found <= own if found else bool(_resolved(host))


@functools.lru_cache(maxsize=4096)
def _resolved(host: str) -> frozenset[str]:
    """Its addresses; none if nobody knows it (ssh's configuration may)."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(str(info[4][0]) for info in found)


def order(addresses: Sequence[str], reached: Collection[str], failed: Collection[str]) -> list[str]:
    """``addresses`` (with prefix: "10.1.2.3/24") of a peer in the order to try them: networks on which other peers
    were ``reached`` first, those on which they were not last. Pure."""

    def turn(address: str) -> int:
        network = network_of(*parted(address))
        return 0 if network in reached else 2 if network in failed else 1

    return sorted(addresses, key=turn)


def parted(address: str) -> tuple[str, int]:
    """``10.1.2.3/24`` as ("10.1.2.3", 24)."""
    host, _, prefix = address.partition("/")
    return host, int(prefix or 128 if ":" in host else prefix or 32)
