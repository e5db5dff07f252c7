"""The coordinator of elastic jobs: hosts that are about to leave, or excluded without a failure."""

from __future__ import annotations

from farandole.job.elastic.changes import HostUpdateResult
from farandole.job.elastic.decisions import Notify, Start, Stop
from farandole.job.elastic.options import ElasticOptions
from tests.job.elastic.simulation import Job, job


def test_members_leave_at_a_commit_and_others_start() -> None:
    made = job(np=2, most=2, a=2, b=2)
    assert made.ranks == (0, 1)
    made.coordinator.depart("a")
    starts = made.step()
    assert [each.member.host for each in starts if isinstance(each, Start)] == ["b", "b"]
    assert not [each for each in starts if isinstance(each, Stop)]
    made.wait(2, 3, after=0)
    assert made.step() == [Notify(1, HostUpdateResult.mixed)]
    made.wait(0, 1, commits=5)
    made.step()
    assert made.ranks == (0, 2)  # the first one hands over the state
    made.wait(3, after=0)
    made.step()
    made.wait(0, 2, commits=6)
    made.step()
    assert made.ranks == (2, 3)


def test_the_only_host_keeps_its_members() -> None:
    made = job(least=1, a=2)
    made.coordinator.depart("a")
    assert made.step() == []
    assert made.coordinator.is_leaving
    made.end(1)
    made.step()
    made.wait(0, commits=3)
    assert "Start" not in [kind for _ in range(5) for kind in (made.step(10.0), made.kinds())[1]]


def test_fewer_than_min_np_stay_where_they_are() -> None:
    made = job(least=4, a=2, b=2)
    made.coordinator.depart("b")
    assert made.step(100.0) == []
    made.coordinator.list_hosts({"a": 2, "b": 2, "c": 2})
    made.step()
    assert made.kinds() == ["Start", "Start"]


def test_a_withdrawn_notice_changes_nothing() -> None:
    made = job(least=1, a=1, b=1)
    made.coordinator.depart("b")
    made.coordinator.remain("b")
    assert made.step() == []


def test_a_host_that_comes_back_is_used_again() -> None:
    made = job(least=1, most=2, a=1, b=1)
    made.coordinator.depart("b")
    made.step()
    made.leave()
    made.step()
    assert made.ranks == (0,)
    made.end(1, ok=True)
    assert made.step(10.0) == []
    made.coordinator.list_hosts({"a": 1})
    made.coordinator.list_hosts({"a": 1, "b": 1})
    assert [type(each) for each in made.step()] == [Start]


def test_a_host_left_out_is_used_after_the_cooldown() -> None:
    options = ElasticOptions(np=2, min_np=1, max_np=2, cooldown=(10.0, 100.0))
    made = Job(options, {"a": 1, "b": 1})
    made.step()
    made.coordinator.leave_out("b", made.now)
    assert made.step() == [Notify(1, HostUpdateResult.removed)]
    made.leave()
    made.step()
    made.end(1, ok=True)
    assert made.ranks == (0,)
    assert made.step(9.0) == []
    assert [type(each) for each in made.step(2.0)] == [Start]


def test_a_failure_of_a_departing_host_is_not_replaced() -> None:
    made = job(least=1, most=2, a=1, b=1)
    made.coordinator.depart("b")
    made.step()
    made.end(1)
    made.step()
    made.leave()
    made.step()
    assert made.ranks == (0,)
    assert made.step(100.0) == []
