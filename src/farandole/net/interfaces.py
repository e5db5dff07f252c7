"""The network interfaces of this host: the addresses at which others may reach it, in the order to
try.

Hosts often have several interfaces, some of them dead or not routable. Only a connection attempt
shows which interface reaches which host, so each side offers all of its addresses, and the other
side tries them until one responds. The address itself shows whether it is IPv4 or IPv6; no other
code depends on that.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from farandole.base.host import content
from farandole.errors import SettingsError, did_you_mean

EVERYWHERE = ""  # listen on all interfaces, with IPv4 and IPv6
_ADDRESS, _MASK, _FLAGS = 0x8915, 0x891B, 0x8913  # SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFFLAGS
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # IFF_*; an interface without a carrier is not running
_LINK = 0x20  # the scope of addresses that are valid only on one link
# Flags of addresses that change (privacy), are deprecated, or may belong to another host.
_PASSING = 0x69


class Interface(NamedTuple):
    """One address of an interface at which others may reach this host.

    ``prefix`` is the length of the network part in bits; ``speed`` is in Mbit/s, 0 if unknown.
    """

    name: str
    address: str
    prefix: int
    speed: int = 0
    loopback: bool = False

    @property
    def network(self) -> str:
        return network_of(self.address, self.prefix)


def network_of(address: str, prefix: int) -> str:
    """Return the network of an address: ``10.1.2.3`` with 24 gives ``10.1.2.0/24``."""
    import ipaddress  # imported here because a job on one host does not need it

    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


def joined(host: str, port: object) -> str:
    """Join host and port: ``10.1.2.3:80``, or ``[fd00::1]:80`` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, str]:
    """Split a ``joined`` address into host and port."""
    host, _, port = address.rpartition(":")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port


def caller(sock: socket.socket) -> str:
    """Return the peer's address of a TCP connection; empty if the peer is gone."""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    # A dual-stack socket shows IPv4 addresses in this form.
    return joined(host.removeprefix("::ffff:"), port)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def listening(host: str, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on an address of this host, or on EVERYWHERE, at a port chosen
    by the system.

    Raises SettingsError if the loopback interface lacks its address.
    """
    if host == EVERYWHERE and socket.has_dualstack_ipv6():
        return socket.create_server(
            (host, 0), backlog=backlog, family=socket.AF_INET6, dualstack_ipv6=True
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), backlog=backlog, family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or not is_loopback(host):
            raise
        raise SettingsError(
            f"this host ({socket.gethostname()}) lacks the address {host}, which connects its"
            f" processes: ip address add {host}/{128 if ':' in host else 8} dev lo"
        ) from None


def interfaces() -> list[Interface]:
    """Return the addresses of the interfaces that are up and have a carrier.

    These are the first IPv4 address of each, and its IPv6 addresses, except those that other hosts
    cannot use or that will change.
    """
    found = []
    more: dict[str, list[tuple[str, int]]] = {}
    for name, address, prefix, lasts in _ipv6():
        if lasts:
            more.setdefault(name, []).append((address, prefix))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            ask = struct.pack("256s", name.encode()[:15])
            try:
                (flags,) = struct.unpack_from("=H", fcntl.ioctl(sock, _FLAGS, ask), 16)
            except OSError:  # the interface has just been removed
                continue
            addresses = [*_ipv4(sock, ask), *more.get(name, ())]
            if flags & _UP and flags & _RUNNING and addresses:
                speed, loopback = _speed(name), bool(flags & _LOOPBACK)
                found += [
                    Interface(name, address, prefix, speed, loopback)
                    for address, prefix in addresses
                ]
    return found


def _ipv4(sock: socket.socket, ask: bytes) -> list[tuple[str, int]]:
    """Return the IPv4 address and prefix of an interface, as a list; empty if it has none."""
    try:
        address = socket.inet_ntoa(fcntl.ioctl(sock, _ADDRESS, ask)[20:24])
        mask = fcntl.ioctl(sock, _MASK, ask)[20:24]
    except OSError:
        return []
    return [(address, int.from_bytes(mask, "big").bit_count())]


def _ipv6() -> Iterator[tuple[str, str, int, bool]]:
    """Yield the IPv6 addresses of all interfaces.

    Each item is the interface's name, the address, its prefix, and whether the address is permanent
    and usable by other hosts.
    """
    for line in content("/proc/net/if_inet6").splitlines():
        digits, _, prefix, scope, flags, name = line.split()
        lasts = int(scope, 16) != _LINK and not int(flags, 16) & _PASSING
        yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), int(prefix, 16), lasts


def _speed(name: str) -> int:
    text = content(f"/sys/class/net/{name}/speed").strip()
    return int(text) if text.isdigit() else 0


def chosen(found: Iterable[Interface], names: str = "", near: str = "") -> list[Interface]:
    """Return the interfaces to offer, in the order to try them. Pure.

    ``names`` is the user's ordered list ("eth0,ib0"). Without it, all interfaces but the loopback
    are offered, the fastest first; on a tie, the interface with the address ``near`` comes first.
    Raises SettingsError for unknown names.
    """
    known: dict[str, list[Interface]] = {}
    for interface in found:
        known.setdefault(interface.name, []).append(interface)
    if names:
        wanted = [name.strip() for name in names.split(",")]
        for name in wanted:
            if name not in known:
                near_it = did_you_mean(name, known)
                raise SettingsError(
                    f"--network-interfaces {names}: this host ({socket.gethostname()}) has no"
                    f" interface {name!r} that is up and has an address (it has"
                    f" {', '.join(known) or 'none'}){near_it}"
                )
        return [interface for name in wanted for interface in known[name]]
    outside = [interface for own in known.values() for interface in own if not interface.loopback]
    return sorted(outside, key=lambda interface: (-interface.speed, interface.address != near))


def offered(near: str, names: str = "") -> str:
    """Return the addresses for others to try, separated by commas ("10.1.2.3/24,192.168.7.3/16").

    ``near`` is this host's address towards the driver; for ``names`` see ``chosen``. A job whose
    driver is on the loopback runs entirely on this host.
    """
    if is_loopback(near) and not names:
        return near
    found = [
        f"{interface.address}/{interface.prefix}" for interface in chosen(interfaces(), names, near)
    ]
    known = names or any(parted(address)[0] == near for address in found)
    return ",".join(found if known else [*found, near])


def outside(near: str, names: str = "") -> str:
    """Return this host's address for a service that other hosts use; see ``offered``."""
    found = chosen(interfaces(), names, near)
    return found[0].address if found else near


def is_here(host: str) -> bool:
    """Return whether ``host`` is a name or an address of this machine."""
    if host in ("localhost", socket.gethostname()) or is_loopback(host):
        return True
    own = {interface.address for interface in interfaces()} | {
        address for _, address, _, _ in _ipv6()
    }
    if host in own:
        return True
    found = _resolved(host)
    # IPv6 DNS records may be outdated.
    found = frozenset(address for address in found if ":" not in address) or found
    # Debian's /etc/hosts has: 127.0.1.1 box.lab box
    outside = {address for address in found if not is_loopback(address)}
    return outside <= own if outside else bool(found)


@functools.lru_cache(maxsize=4096)
def _resolved(host: str) -> frozenset[str]:
    """Return a host's addresses; empty if unknown (ssh's configuration may know the host)."""
    # Passed as bytes, because Python encodes text as IDNA, which rejects labels of more than 63
    # letters, although host names may have them.
    name: str | bytes = host.encode() if host.isascii() else host
    try:
        found = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(info[4][0]).partition("%")[0] for info in found)


def order(addresses: Sequence[str], reached: Collection[str], failed: Collection[str]) -> list[str]:
    """Sort a peer's ``addresses`` (with prefix: "10.1.2.3/24") by the order to try them. Pure.

    Networks on which other peers were ``reached`` come first, those on which peers ``failed`` last.
    """

    def turn(address: str) -> int:
        network = network_of(*parted(address))
        return 0 if network in reached else 2 if network in failed else 1

    return sorted(addresses, key=turn)


def parted(address: str) -> tuple[str, int]:
    """Split an address and its prefix: ``10.1.2.3/24`` gives ("10.1.2.3", 24)."""
    host, _, prefix = address.partition("/")
    return host, int(prefix or 128 if ":" in host else prefix or 32)
