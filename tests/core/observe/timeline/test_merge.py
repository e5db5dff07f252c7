"""One clock for all hosts, and one timeline of all ranks."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from farandole import cli
from farandole.base.host import clock_name
from farandole.core.engine import Engine
from farandole.core.observe.timeline import ahead, merge, read
from farandole.errors import SettingsError
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, StoreServer
from tests.core.observe.timeline.events import check, entry, events_from, life, traced
from tests.kits.messages import mentioning
from tests.pool import procs


def test_one_clock_for_two_hosts() -> None:
    now = [1000.0]

    def mine() -> float:
        return now[0]

    trips = iter([0.01, 0.002, 0.05, 0.003, 0.02, 0.009, 0.01, 0.004])

    def ask() -> tuple[float, str]:
        trip = next(trips)
        now[0] += trip * 0.3  # there and back again take different times
        theirs = now[0] + 77.0
        now[0] += trip * 0.7
        return theirs, "other"

    assert abs(ahead(ask, "mine", mine) - 77.0) < 0.001
    assert ahead(lambda: (now[0] + 77.0, "mine"), "mine", mine) == 0.0
    # clocks without a name are not known to be one
    assert ahead(lambda: (5.0, ""), "", lambda: 2.0) == 3.0


def test_the_store_tells_the_time() -> None:
    secret = new_secret()
    server = StoreServer(secret)
    client = StoreClient(server.address, secret)
    try:
        before = time.monotonic()
        now, name = client.clock()
        assert before <= now <= time.monotonic()
        assert name == clock_name() != ""
        assert ahead(client.clock, clock_name()) == 0.0
        begin = time.monotonic()
        assert abs(ahead(client.clock, "another host's")) <= time.monotonic() - begin
    finally:
        client.close()
        server.close()


def test_the_timelines_of_all_ranks_become_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(engine: Engine) -> None:
        for name in ("a", "b"):
            engine.run([entry(name, np.ones(1000, np.float32))])

    traced(2, tmp_path / "t.json", body, procs)
    files = [f"{tmp_path}/t.json.rank{rank}" for rank in (1, 0)]
    assert cli.main(["timeline", "merge", *files, "-o", f"{tmp_path}/all.json"]) == 0
    merged = json.loads((tmp_path / "all.json").read_text())
    assert f"2 timelines, {len(merged)} events" in capsys.readouterr().out
    check(merged)
    assert {
        each["pid"]: each["args"]["name"] for each in merged if each["name"] == "process_name"
    } == {0: "rank 0", 1: "rank 1"}
    for rank in range(2):
        names = {
            each["args"]["name"]: each["tid"]
            for each in merged
            if each["name"] == "thread_name" and each["pid"] == rank
        }
        for name in ("a", "b"):
            found = [
                (each["ph"], each["name"])
                for each in merged
                if each["ph"] != "M" and (each["pid"], each["tid"]) == (rank, names[name])
            ]
            assert Counter(found) == Counter(life("ALLREDUCE", "INPROC", 2))
    times = [each["ts"] for each in merged if each["ph"] != "M"]
    assert times == sorted(times)
    begins = [each["ts"] for each in merged if (each["ph"], each["name"]) == ("B", "ALLREDUCE")]
    ends = [each["ts"] for each in merged if (each["ph"], each["name"]) == ("E", "ALLREDUCE")]
    # both ranks are in "a" at once: it is one clock
    assert max(sorted(begins)[:2]) < min(sorted(ends)[:2])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[", "timeline"),
        ("[]", "timeline of one rank"),
        ('[{"ph": "M"}]', "rank"),
    ],
)
def test_merge_refuses_files_other_than_timelines(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(SettingsError, match=mentioning(says)):
        read(str(tmp_path / "t.json"))
    with pytest.raises(SettingsError, match=mentioning("No such file")):
        read(str(tmp_path / "other.json"))


def test_a_rank_is_merged_once() -> None:
    one = events_from()
    with pytest.raises(SettingsError, match=mentioning("[0, 0]")):
        merge([one, one])


@pytest.mark.parametrize("arguments", [[], ["join"], ["merge", "x"], ["merge", "-o", "y"]])
def test_the_command_names_missing_parts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["timeline", *arguments]) == 2
    assert "farandole: " in capsys.readouterr().err
