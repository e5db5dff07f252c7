from __future__ import annotations

from pathlib import Path

import pytest

from farandole.base.types import Slot
from farandole.errors import SettingsError
from farandole.job.launch.plan import check_np, parse_hosts, places, plan, read_hostfile
from tests.kits.messages import mentioning


def test_this_machine_is_the_default() -> None:
    assert plan(None, 2) == (
        Slot(0, "localhost", 0, 2, 0, 1, 2),
        Slot(1, "localhost", 1, 2, 0, 1, 2),
    )


def test_one_process_per_rank_and_not_per_slot() -> None:
    slots = plan("localhost:4", 2)
    assert [slot.rank for slot in slots] == [0, 1]
    assert {slot.local_size for slot in slots} == {2}


def test_hosts_are_filled_in_order() -> None:
    slots = plan("a:1,b:3,c:2", 5)
    assert [(s.rank, s.host, s.local_rank) for s in slots] == [
        (0, "a", 0),
        (1, "b", 0),
        (2, "b", 1),
        (3, "b", 2),
        (4, "c", 0),
    ]
    assert [s.local_size for s in slots] == [1, 3, 3, 3, 1]
    assert [(s.cross_rank, s.cross_size) for s in slots] == [(0, 3), (1, 3), (0, 1), (0, 1), (2, 3)]


def test_unused_hosts_do_not_count() -> None:
    assert [s.cross_size for s in plan("a:2,b:2,c:2", 4)] == [2, 2, 2, 2]


def test_two_names_of_one_machine_are_two_hosts() -> None:
    assert [s.host for s in plan("localhost:2,127.0.0.1:2", 4)] == ["localhost"] * 2 + [
        "127.0.0.1"
    ] * 2


def test_a_host_named_twice_has_the_sum_of_its_slots() -> None:
    assert parse_hosts("a:1, b:1,a:2") == [("a", 3), ("b", 1)]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_places_are_distinct_and_consistent(size: int) -> None:
    slots = plan("a:3,b:1,c:5", size)
    assert [s.rank for s in slots] == list(range(size))
    assert len({(s.local_rank, s.cross_rank) for s in slots}) == size
    assert all(s.local_rank < s.local_size and s.cross_rank < s.cross_size for s in slots)


@pytest.mark.parametrize("np", [0, -1, -100])
def test_np_below_one(np: int) -> None:
    with pytest.raises(SettingsError, match=mentioning(f"np={np}", ">= 1")):
        plan(None, np)


@pytest.mark.parametrize(
    ("np", "kind"), [("2", "str"), (None, "NoneType"), (2.0, "float"), (True, "bool")]
)
def test_np_that_is_no_number(np: object, kind: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(kind, ">= 1")):
        check_np(np)


@pytest.mark.parametrize("hosts", ["", "a", "a:", "a:x", ":2", "a:1,,b:2", "a b:1"])
def test_hosts_that_cannot_be_read(hosts: str) -> None:
    with pytest.raises(ValueError, match=mentioning("host")):
        plan(hosts, 1)


def test_hosts_that_are_no_text() -> None:
    with pytest.raises(SettingsError, match=mentioning("hosts=['a:2', 'b:2']", "string")):
        parse_hosts(["a:2", "b:2"])  # type: ignore[arg-type]


def test_too_few_slots() -> None:
    with pytest.raises(ValueError, match=mentioning("(4)", "slots", "(3)")):
        plan("a:1,b:2", 4)


def test_a_user_may_stand_before_a_host() -> None:
    assert parse_hosts("me@a:2,b:1") == [("me@a", 2), ("b", 1)]


def test_a_hostfile_in_horovods_format(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        "# ours\none slots=2\n\n  two   slots = 4  # the large one\nthree\n"
    )
    assert read_hostfile(str(tmp_path / "hosts")) == "one:2,two:4,three:1"


def test_a_hostfile_of_windows(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfone slots=2\r\ntwo\tslots=4\r\n")
    assert read_hostfile(str(tmp_path / "hosts")) == "one:2,two:4"


def test_a_hostfile_in_open_mpis_format(tmp_path: Path) -> None:
    """Ranks never exceed slots, so a limit on slots always holds."""
    (tmp_path / "hosts").write_text(
        "one slots=2 max_slots=4\ntwo max-slots=3 slots=3 # all\nthree max_slots=8\n"
    )
    assert read_hostfile(str(tmp_path / "hosts")) == "one:2,two:3,three:1"


def test_ipv6_addresses_stand_in_brackets(tmp_path: Path) -> None:
    listed = "[::1]:2,me@[fe80::1%eth0]:1,[2001:db8::7]:4"
    pairs = [("::1", 2), ("me@fe80::1%eth0", 1), ("2001:db8::7", 4)]
    assert parse_hosts(listed) == pairs
    assert places(plan(listed, 7)) == listed.replace(",", ", ")
    (tmp_path / "hosts").write_text("::1 slots=2\nme@[fe80::1%eth0]\n2001:db8::7\tslots=4 # all\n")
    assert read_hostfile(str(tmp_path / "hosts")) == listed
    with pytest.raises(SettingsError, match=mentioning("(7)", "[::1]", "2", "fe80::1", "eth0")):
        plan(listed, 8)


@pytest.mark.parametrize("host", ["::1:2", "2001:db8::7:1", "me@fd00::1"])
def test_an_ipv6_address_without_brackets_may_end_anywhere(host: str) -> None:
    with pytest.raises(
        SettingsError,
        match=mentioning("IPv6", "fd00::1"),
    ):
        parse_hosts(f"a:1,{host}")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[fd00::1]:2\n", ("fd00::1", "slots=2")),
        (
            "one slots=2\ntwo three\n",
            ("hosts:2", "'two three'"),
        ),
        (
            "one slots=5 max_slots=4",
            ("hosts:1", "'one slots=5 max_slots=4'"),
        ),
        (
            "one:2\n",
            (("hosts:1", "'one:2'", "slots=2")),
        ),
        ("# comment\n", "hosts"),
        (None, "read"),
    ],
)
def test_hostfiles_that_cannot_be_read(
    tmp_path: Path, content: str | None, says: str | tuple[str, ...]
) -> None:
    if content is not None:
        (tmp_path / "hosts").write_text(content)
    with pytest.raises(SettingsError, match=mentioning(says)):
        read_hostfile(str(tmp_path / "hosts"))
