from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole import cli
from farandole.cli.hosts import rounds, table
from tests.kits.hosts import Hosts, hosts
from tests.kits.messages import mentions

FACTS = {
    "hostname": "gpu1.lab",
    "python": "3.11.7",
    "executable": "/p",
    "farandole": None,
    "numpy": "2.4.6",
    "cores": 8,
    "memory": 64 << 30,
    "gpus": ["A100", "A100"],
    "addresses": ["10.0.0.1"],
}


@pytest.mark.parametrize(("count", "pairs"), [(1, 0), (2, 1), (4, 6), (8, 28), (9, 9), (50, 50)])
def test_every_pair_is_measured_once_and_no_host_twice_at_a_time(count: int, pairs: int) -> None:
    found = list(rounds([f"h{index}" for index in range(count)]))
    assert len({pair for turn in found for pair in turn}) == sum(map(len, found)) == pairs
    for turn in found:
        names = [name for pair in turn for name in pair]
        assert len(names) == len(set(names))
        assert all(int(first[1:]) < int(second[1:]) for first, second in turn)


def test_the_table() -> None:
    other = {**FACTS, "farandole": "", "numpy": "", "python": "3.10.1", "gpus": []}
    measured = {"address": "10.0.0.2", "latency": 25e-6, "bandwidth": 1.25e9}
    lines = table(
        [("a", 2), ("b", 4), ("c", 1)],
        {
            "hosts": {"a": FACTS, "b": other, "c": {**FACTS, "farandole": "/old"}},
            "pairs": {"a b": measured, "a c": {"error": "10.0.0.3: timed out"}},
        },
    ).splitlines()
    assert re.split(r"  +", lines[1]) == [
        "a",
        "2",
        "gpu1.lab",
        "3.11.7",
        "the same",
        "2.4.6",
        "8",
        "64 GiB",
        "2 x A100",
    ]
    assert re.split(r"  +", lines[2])[4:6] == ["none: ours is sent", "none"]
    assert "another one: ours is sent" in lines[3]
    assert re.split(r"  +", lines[6]) == ["a and b", "10.0.0.2", "25 us", "10 Gbit/s"]
    assert lines[7].endswith("not reached: 10.0.0.3: timed out")
    assert lines[9].startswith("Python differs")
    assert lines[-1] == "numpy is missing on b: every rank needs it (pip install numpy)"


def test_names_that_would_change_the_terminal_are_escaped() -> None:
    lines = table(
        [("a", 2)], {"hosts": {"a": {**FACTS, "hostname": "\x1b[2Jgpu\udcff"}}, "pairs": {}}
    ).splitlines()
    assert re.split(r"  +", lines[1])[2] == "\\x1b[2Jgpu\\udcff"
    assert lines[0].index("Python") == lines[1].index("3.11.7")


def test_hosts_have_to_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hosts"]) == 2
    assert mentions(capsys.readouterr().err, "--hostfile", "hosts")


def command_of(made: Hosts, listed: str) -> tuple[list[str], dict[str, str]]:
    """``farandole hosts`` on the first host, and its environment."""
    root = Path(__file__).parents[2]
    env = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "FARANDOLE_SSH_OPTIONS": f"-F {made.config}",
    }
    return made[0].command(sys.executable, "-m", "farandole.cli", "hosts", "-H", listed), env


def test_a_firewall_on_the_way_back_to_the_driver() -> None:
    with hosts(3) as made:
        for number, rule in (
            (10, "sport 22 lookup main"),
            (20, f"to {made[0].address} unreachable"),
        ):
            made[2].run(*f"ip rule add pref {number} ipproto tcp {rule}".split())
        command, env = command_of(made, "a:1,b:1,c:1")
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 1
        assert mentions(done.stderr, "c: ", "10.99.0.1", "Network is unreachable"), done.stderr
        made[2].run("ip", "rule", "del", "pref", "20")
        made[2].run(*f"ip rule add pref 20 to {made[1].address} ipproto tcp unreachable".split())
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 1, "ranks of c could not connect to those of b"
        assert re.findall(r"^(\w and \w) .* not reached: (.*):", done.stdout, re.M) == [
            ("b and c", made[1].address)
        ]
        assert made.idle()


def test_three_hosts() -> None:
    with hosts(3, speed="1gbit") as made:
        command, env = command_of(made, "a:1,b:2,c:1")
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        none = [*command, "--network-interfaces", "eth7"]
        without = subprocess.run(
            none, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert without.returncode == 1
        assert re.findall(
            r"^  (\w): .*this host \(\w\) has no interface 'eth7'", without.stderr, re.M
        ) == [
            "a",
            "b",
            "c",
        ]
        assert made.idle()
    lines = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert [(row[0], row[1], row[2]) for row in lines[1:4]] == [
        ("a", "1", "a"),
        ("b", "2", "b"),
        ("c", "1", "c"),
    ]
    assert {row[0] for row in lines[6:]} == {"a and b", "a and c", "b and c"}
    assert all(row[3].endswith("Gbit/s") for row in lines[6:])
