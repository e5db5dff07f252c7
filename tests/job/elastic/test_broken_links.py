"""Hosts that cannot reach each other: the choice of the hosts to leave out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.durations import readable
from farandole.job.elastic.broken_links import BrokenLink, broken_links, hosts_to_leave_out, listed
from farandole.job.elastic.decisions import GiveUp, LeaveOut, Publish
from farandole.job.elastic.membership import Member
from farandole.job.elastic.options import ElasticOptions
from tests.job.elastic.simulation import Job, job
from tests.kits.messages import mentions


def links(*pairs: str) -> list[BrokenLink]:
    return [BrokenLink(0, one, 0, other) for one, other in pairs]


@pytest.mark.parametrize(
    ("pairs", "ranks", "out"),
    [
        (("ab",), {"a": 1, "b": 1, "c": 1}, ["b"]),
        (("ba",), {"a": 1, "b": 2}, ["a"]),
        (("ab", "ac"), {"a": 1, "b": 1, "c": 1}, ["a"]),
        (("ab", "ac"), {"a": 2, "b": 1, "c": 1}, ["a"]),
        (("ab", "ac"), {"a": 3, "b": 1, "c": 1}, ["c", "b"]),
        (("ab", "ac", "ad"), {"a": 1, "b": 3, "c": 1, "d": 1}, ["a"]),
        (("ac", "ad", "bc", "bd"), {"a": 1, "b": 1, "c": 1, "d": 1}, ["d", "c"]),
        ((), {"a": 1}, []),
    ],
)
def test_the_host_with_most_lost_ranks_is_left_out(
    pairs: tuple[str, ...], ranks: dict[str, int], out: list[str]
) -> None:
    assert hosts_to_leave_out(links(*pairs), ranks, set(ranks)) == out


def test_a_new_host_does_not_push_out_the_state() -> None:
    ranks = {"a": 1, "b": 1, "c": 8}
    assert hosts_to_leave_out(links("ac", "bc"), ranks, {"a", "b"}) == ["c"]
    assert hosts_to_leave_out(links("ac"), ranks, {"c"}) == ["a"]


def test_links_are_those_of_processes_that_are_left() -> None:
    members = [Member(7, "a", 0), Member(8, "b", 0), Member(9, "b", 1), Member(5, "c", 0)]
    found = broken_links(members, {7: (), 8: (0, 3, 2, 99), 9: (0,), 2: (1,)})
    assert found == [BrokenLink(1, "b", 0, "a")]
    assert mentions(listed(found), "rank 1 on b", "rank 0 on a")
    assert mentions(listed([*found, *found, *found]), "rank 1 on b", "2")


HOSTS = "abcdef"
PAIRS = st.sets(
    st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)).filter(lambda pair: pair[0] < pair[1])
)


@given(PAIRS, st.lists(st.integers(1, 9), min_size=6, max_size=6), st.sets(st.sampled_from(HOSTS)))
def test_the_hosts_that_stay_reach_each_other(
    pairs: set[tuple[str, str]], numbers: list[int], holders: set[str]
) -> None:
    ranks = dict(zip(HOSTS, numbers, strict=True))
    out = hosts_to_leave_out([BrokenLink(0, a, 0, b) for a, b in pairs], ranks, holders)
    stay = set(HOSTS) - set(out)
    assert stay
    assert not any({a, b} <= stay for a, b in pairs)
    assert set(out) <= {host for pair in pairs for host in pair}
    assert len(set(out)) == len(out)
    assert not holders or holders & stay


class TestCoordinator:
    def fruitless(self, made: Job, unreached: dict[int, tuple[int, ...]]) -> list[str]:
        """Let a membership fail because of the ranks that processes cannot reach."""
        for process in made.ranks:
            made.wait(process, commits=3, unreached=unreached.get(process, ()))
        made.step()
        return [each.host for each in made.membership.members]

    def test_a_host_is_left_out_immediately(self) -> None:
        made = job(least=2, most=None, a=2, b=1, c=1)
        assert self.fruitless(made, {3: (0,)}) == ["a", "a", "b"]
        (change,) = [each for each in made.last if isinstance(each, LeaveOut)]
        assert change.hosts == ("c",)
        assert mentions(change.reason, "rank 3 on c", "rank 0 on a")
        assert made.membership.removed == (3,)

    def test_free_slots_take_its_place(self) -> None:
        made = Job(ElasticOptions(np=2, min_np=2, max_np=2), {"a": 1, "b": 1, "c": 1})
        made.step()
        made.wait(0, commits=3)
        made.wait(1, commits=3, unreached=(0,))
        assert made.kinds() != ["Publish"]
        made.step()
        made.step()
        made.wait(2, after=0)
        made.step()
        assert [each.host for each in made.membership.members] == ["a", "c"]

    @pytest.mark.parametrize(
        ("cooldown", "delays"),
        [((10.0, 15.0), (10.0, 15.0, 15.0)), (None, (60.0, 120.0, 240.0))],
    )
    def test_it_is_tried_again_after_longer_times(
        self, cooldown: tuple[float, float] | None, delays: tuple[float, ...]
    ) -> None:
        made = Job(ElasticOptions(np=3, min_np=2, cooldown=cooldown), {"a": 1, "b": 1, "c": 1})
        made.step()
        process = 2
        for number, delay in enumerate(delays):
            made.commits = dict.fromkeys(range(10), 3 + number)
            assert self.fruitless(made, {process: (0,)}) == ["a", "b"]
            (change,) = [each for each in made.last if isinstance(each, LeaveOut)]
            assert change.seconds == (delay,)
            assert mentions(change.describe(), "c", "rank 2 on c")
            assert mentions(change.describe(), readable(delay))
            made.end(process, ok=True)
            assert made.step(delay - 1.0) == []
            made.step(2.0)
            assert made.kinds() == ["Start"]
            process += 1
            made.wait(process, after=0)
            made.step()
            made.leave()
            made.step()
            assert made.ranks == (0, 1, process)

    def test_a_network_that_recovers_costs_no_host(self) -> None:
        """The failure of a process counts from zero after a broken link."""
        made = Job(ElasticOptions(np=3, min_np=2), {"a": 1, "b": 1, "c": 1})
        made.step()
        assert self.fruitless(made, {2: (0,)}) == ["a", "b"]
        made.end(2, ok=True)
        made.step(61.0)
        made.commits = {0: 4, 1: 4}
        made.wait(3, after=0)
        made.step()
        made.leave()
        made.step()
        assert [each.host for each in made.membership.members] == ["a", "b", "c"]
        made.end(3)
        made.step()
        made.leave()
        made.step()
        assert made.step(1e6) == []  # without a cooldown, a failed host is excluded forever

    def test_a_reset_limit_allows_no_further_attempt(self) -> None:
        made = Job(ElasticOptions(np=3, min_np=2, reset_limit=9), {"a": 1, "b": 1, "c": 1})
        made.step()
        assert self.fruitless(made, {2: (0,)}) == ["a", "b"]
        (change,) = [each for each in made.last if isinstance(each, LeaveOut)]
        assert mentions(change.describe(), "--cooldown-range")
        made.end(2, ok=True)
        assert made.step(1e6) == []

    def test_min_np_keeps_all_hosts_until_the_job_ends(self) -> None:
        made = job(least=3, most=None, a=1, b=1, c=1)
        assert self.fruitless(made, {2: (0,)}) == ["a", "b", "c"]
        while isinstance(made.last[-1], Publish):
            self.fruitless(made, {2: (0,)})
        end = made.last[-1]
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "rank 2 on c", "rank 0 on a")
        assert mentions(end.cure, "--min-np")
