"""Faults of hosts: damaged replicas and stragglers, as ranks report them."""

from __future__ import annotations

import json

import pytest

from farandole.job.elastic.faults import HostFaults
from farandole.job.elastic.membership import Member, Membership
from tests.kits.messages import mentions

TWO = Membership(4, (Member(0, "a", 0), Member(1, "b", 0), Member(2, "b", 1)))


def test_the_second_damage_leaves_a_host_out() -> None:
    faults = HostFaults()
    faults.hear("damaged", "4/10", b"[1]")
    assert faults.take(TWO) == []
    faults.hear("damaged", "3/11", b"[0]")  # of an earlier membership
    faults.hear("damaged", "4/12", b"[0, 2]")
    ((host, reason),) = faults.take(TWO)
    assert host == "b"
    assert mentions(reason, "2", "FAR032")
    faults.hear("damaged", "4/13", b"[1]")
    assert faults.take(TWO) == []


@pytest.mark.parametrize("unit", ["step", "collectives"])
def test_a_straggler_is_left_out_with_its_times(unit: str) -> None:
    faults = HostFaults()
    report = json.dumps({"rank": 2, "seconds": 0.5, "others": 0.125, "unit": unit})
    faults.hear("straggler", "4/30", report.encode())
    ((host, reason),) = faults.take(TWO)
    assert host == "b"
    assert mentions(reason, "rank 2", "0.5", "0.125", unit)


@pytest.mark.parametrize(
    ("kind", "rest", "value"),
    [
        ("damaged", "x/1", b"[1]"),
        ("damaged", "4/1", b"{"),
        ("damaged", "4/1", b'["a"]'),
        ("straggler", "4/1", b"[]"),
        ("straggler", "4/1", b'{"rank": 1}'),
        ("straggler", "4/1", b'{"rank": 1, "seconds": 2, "others": 1, "unit": "mile"}'),
        ("damaged", "4/1", b"[9]"),
    ],
)
def test_malformed_reports_have_no_effect(kind: str, rest: str, value: bytes) -> None:
    faults = HostFaults()
    faults.hear(kind, rest, value)
    assert faults.take(TWO) == []
