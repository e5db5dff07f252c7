from __future__ import annotations

import errno
import socket

import pytest

from farandole.errors import SettingsError
from farandole.net import interfaces as network
from farandole.net.interfaces import (
    EVERYWHERE,
    Interface,
    chosen,
    interfaces,
    is_here,
    joined,
    listening,
    network_of,
    offered,
    order,
    parted,
    split,
)
from tests.kits.messages import mentioning

LOOPBACK = Interface("lo", "127.0.0.1", 8, loopback=True)
OFFICE = Interface("eth0", "10.1.2.3", 24, 1000)
SECOND = Interface("eth1", "10.1.3.3", 24, 1000)
FABRIC = Interface("ib0", "192.168.7.3", 16, 100_000)
SIXTH = Interface("eth0", "fd00:1::3", 64, 1000)
ALL = [LOOPBACK, OFFICE, SECOND, FABRIC]


def test_this_host_has_a_loopback() -> None:
    assert Interface("lo", "127.0.0.1", 8, 0, True) in interfaces()


def test_a_loopback_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may have only ::1."""

    def absent(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", absent)
    with pytest.raises(SettingsError, match=mentioning("127.0.0.1/8", "address")):
        listening("127.0.0.1")
    with pytest.raises(OSError, match="Cannot assign"):
        listening("10.1.2.3")


def test_the_fastest_first_then_the_one_towards_the_driver() -> None:
    assert chosen(ALL) == [FABRIC, OFFICE, SECOND]
    assert chosen(ALL, near="10.1.3.3") == [FABRIC, SECOND, OFFICE]
    assert chosen([LOOPBACK]) == []


def test_an_interface_may_have_addresses_of_both_kinds() -> None:
    assert chosen([*ALL, SIXTH]) == [FABRIC, OFFICE, SIXTH, SECOND]
    assert chosen([*ALL, SIXTH], near="fd00:1::3") == [FABRIC, SIXTH, OFFICE, SECOND]
    assert chosen([OFFICE, SIXTH, SECOND], "eth1,eth0") == [SECOND, OFFICE, SIXTH]
    assert SIXTH.network == "fd00:1::/64"


def test_unusable_or_temporary_ipv6_addresses_are_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux's flags: link-local, temporary (privacy), deprecated, and tentative."""
    kinds = [
        ("01", "00", "80"),
        ("02", "20", "80"),
        ("03", "00", "01"),
        ("04", "00", "20"),
        ("05", "00", "c0"),
    ]
    lines = [f"fd00{end:0>28} 01 40 {scope} {flags}       lo\n" for end, scope, flags in kinds]
    monkeypatch.setattr(
        network, "content", lambda path: "".join(lines) if path.endswith("if_inet6") else ""
    )
    found = [each for each in interfaces() if ":" in each.address]
    assert found == [Interface("lo", "fd00::1", 64, 0, True)]
    assert all(is_here(f"fd00::{end}") for end in range(1, 6))
    assert not is_here("fd00::6")


@pytest.mark.parametrize("host", ["10.1.2.3", "fd00::1", "gpu1"])
def test_an_address_and_its_port(host: str) -> None:
    assert split(joined(host, 80)) == (host, "80")
    assert joined("fd00::1", 80) == "[fd00::1]:80"


def test_listening_everywhere_is_by_both_kinds() -> None:
    with listening(EVERYWHERE) as door:
        for host in ("127.0.0.1", "::1"):
            with (
                socket.create_connection((host, door.getsockname()[1]), 5.0) as there,
                door.accept()[0],
            ):
                assert there.getpeername()[0] == host


def test_the_users_choice_in_its_order() -> None:
    assert chosen(ALL, "eth1, eth0") == [SECOND, OFFICE]
    assert chosen(ALL, "lo") == [LOOPBACK]


def test_only_reachable_addresses_are_offered_to_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "interfaces", lambda: ALL)
    assert offered("10.1.2.3") == "192.168.7.3/16,10.1.2.3/24,10.1.3.3/24"
    assert offered("10.1.2.3", "eth1") == "10.1.3.3/24"
    assert offered("127.0.0.1") == "127.0.0.1"  # all ranks are here
    assert offered("::1") == "::1"
    assert offered("fd00::1") == "192.168.7.3/16,10.1.2.3/24,10.1.3.3/24,fd00::1"


def test_names_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "interfaces", lambda: ALL)
    assert is_here("localhost")
    assert is_here("127.0.0.2")
    assert is_here("10.1.3.3")
    assert not is_here("10.1.3.4")
    assert not is_here("no-such-host.invalid")
    for name in ("n" * 64, "a..b", "ü" * 64, "ü..b"):  # IDNA knows no such names
        assert not is_here(name)


@pytest.mark.parametrize(
    ("addresses", "here"),
    [
        ({"127.0.1.1"}, True),
        ({"127.0.1.1", "10.1.2.3"}, True),
        ({"127.0.1.1", "10.9.9.9"}, False),
        (set(), False),
        ({"10.1.2.3", "fd00::9"}, True),
        ({"127.0.1.1", "fd00::9"}, True),
        ({"fd00::9"}, False),
    ],
)
def test_a_name_of_this_host_as_debian_has_it(
    addresses: set[str], here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "interfaces", lambda: ALL)
    monkeypatch.setattr(network, "_resolved", lambda host: frozenset(addresses))
    assert is_here("box.lab") is here


def test_an_interface_that_is_not_here() -> None:
    with pytest.raises(SettingsError, match=mentioning("'eth3'", "eth0")):
        chosen(ALL, "eth3")


def test_networks_that_answered_are_tried_first() -> None:
    addresses = ["172.17.0.1/16", "10.1.2.9/24", "192.168.7.9/16"]
    assert order(addresses, reached=set(), failed=set()) == addresses
    assert order(addresses, {"192.168.0.0/16"}, {"172.17.0.0/16"}) == [
        addresses[2],
        addresses[1],
        addresses[0],
    ]


def test_addresses_and_their_networks() -> None:
    assert parted("10.1.2.3/24") == ("10.1.2.3", 24)
    assert parted("10.1.2.3") == ("10.1.2.3", 32)
    assert parted("fe80::1") == ("fe80::1", 128)
    assert network_of("10.1.2.3", 24) == "10.1.2.0/24"
