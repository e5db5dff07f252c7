"""The coordinator of elastic jobs: which processes run, and who is a member."""

from __future__ import annotations

import pytest

from farandole.job.elastic.changes import HostUpdateResult
from farandole.job.elastic.coordinator import (
    FRUITLESS,
    LEAVE,
    SHORTEST_PATIENCE,
    STARTING,
    TOGETHER,
)
from farandole.job.elastic.decisions import (
    Break,
    Finish,
    GiveUp,
    Notify,
    Overdue,
    Start,
    Stop,
)
from farandole.job.elastic.membership import Membership, placements
from farandole.job.elastic.options import ElasticOptions
from tests.job.elastic.simulation import Job, job
from tests.kits.messages import mentions


def test_first_membership_has_all_slots() -> None:
    made = job(np=2, a=2, b=2)
    assert made.kinds() == ["Start"] * 4 + ["Publish"]
    assert made.ranks == (0, 1, 2, 3)
    assert [each.host for each in made.membership.members] == ["a", "a", "b", "b"]


def test_max_np_limits_the_first_membership() -> None:
    assert job(np=2, most=3, a=2, b=2).ranks == (0, 1, 2)


def test_a_start_gives_the_expected_placement() -> None:
    made = job(np=2, a=2)
    made.coordinator.list_hosts({"a": 2, "b": 1})
    (start,) = made.step()
    assert isinstance(start, Start)
    where = start.placement
    assert (where.rank, where.size, where.hostname, where.local_rank) == (2, 3, "b", 0)


def test_waits_for_slots_at_the_start() -> None:
    made = Job(ElasticOptions(np=3, min_np=2, timeout=60.0), {"a": 2})
    assert made.step() == []
    made.coordinator.list_hosts({"a": 2, "b": 1})
    made.step(10.0)
    assert made.ranks == (0, 1, 2)


def test_gives_up_without_enough_slots_at_the_start() -> None:
    made = Job(ElasticOptions(np=3, min_np=2, timeout=60.0), {"a": 2})
    made.step()
    (end,) = made.step(61.0)
    assert isinstance(end, GiveUp)
    assert mentions(end.reason, "2", "3", "61")


class TestLosses:
    def test_survivors_form_the_next_membership(self) -> None:
        made = job(least=1, a=3)
        made.end(1)
        assert made.step() == [Break(1)]
        made.wait(0)
        assert made.step() == []
        made.wait(2)
        made.step()
        assert made.ranks == (0, 2)
        assert made.membership.number == 2

    def test_the_only_host_gets_a_new_process(self) -> None:
        made = job(least=1, a=2)
        made.end(0)
        made.step()
        made.leave()
        made.step()
        assert made.ranks == (1,)
        (start,) = made.step(1.1)
        assert isinstance(start, Start)
        assert (start.member.process, start.member.local_rank) == (2, 0)
        made.wait(2, after=0)
        assert made.step() == [Notify(2, HostUpdateResult.added)]
        made.leave()
        made.step()
        assert made.ranks == (1, 2)

    def test_a_failed_host_is_left_out(self) -> None:
        made = job(a=2, b=2)
        made.end(0)
        assert made.step() == [Stop(1), Break(1)]
        made.leave()
        made.step()
        assert made.ranks == (2, 3)
        assert made.step(1000.0) == []

    def test_a_host_returns_after_its_cooldown(self) -> None:
        options = ElasticOptions(np=4, min_np=2, cooldown=(10.0, 100.0))
        made = Job(options, {"a": 2, "b": 2})
        made.step()
        for delay in (10.0, 20.0, 40.0):
            made.commits = dict.fromkeys(range(20), int(delay))
            failed = next(each.process for each in made.membership.members if each.host == "a")
            made.end(failed)
            made.step()
            made.leave()
            made.step()
            assert made.step(delay - 0.1) == []
            new = [each.member.process for each in made.step(0.2) if isinstance(each, Start)]
            made.wait(*new, after=0)
            made.step()
            made.leave()
            made.step()
            assert made.ranks == (2, 3, *new)

    def test_the_last_ranks_are_not_stopped_during_a_cooldown(self) -> None:
        """The neighbour of a failed process is the only rank with the state until a returns."""
        options = ElasticOptions(np=4, min_np=2, cooldown=(10.0, 100.0))
        made = Job(options, {"a": 2, "b": 2})
        made.step()
        for failed in (0, 2):
            made.end(failed)
            assert Stop(3) not in made.step()
            made.leave()
            made.step()
        (start,) = made.step(1.1)
        assert isinstance(start, Start)
        assert start.member.host == "b"
        made.wait(start.member.process, after=0)
        made.step()
        assert made.ranks == (3, start.member.process)

    def test_fewer_ranks_than_min_np_wait_for_new_ones(self) -> None:
        made = job(least=2, a=2)
        made.end(1)
        made.step()
        made.leave()
        assert made.step(0.5) == []
        (start,) = made.step(0.6)
        assert isinstance(start, Start)
        made.wait(start.member.process, after=0)
        made.step()
        assert made.ranks == (0, 2)

    def test_gives_up_if_no_new_one_comes(self) -> None:
        made = Job(ElasticOptions(np=4, min_np=3, timeout=60.0), {"a": 2, "b": 2})
        made.step()
        made.end(0)
        made.step()
        made.leave()
        made.step()
        (end,) = made.step(61.0)
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "2", "3", "60")

    def test_fixed_hosts_are_given_up_immediately(self) -> None:
        made = Job(ElasticOptions(np=4, min_np=3), {"a": 2, "b": 2}, fixed=True)
        made.step()
        made.end(0)
        made.step()
        made.leave()
        (end,) = made.step()
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "2", "3", "a")

    def test_all_lost(self) -> None:
        made = job(a=1, b=1)
        made.end(0)
        made.end(1)
        (end,) = made.step()
        assert isinstance(end, GiveUp)

    def test_a_second_loss_while_others_wait(self) -> None:
        made = job(least=1, a=4)
        made.end(1)
        made.step()
        made.wait(0, 2)
        made.end(3)
        made.step()
        assert made.ranks == (0, 2)

    def test_the_most_commits_become_rank_0(self) -> None:
        made = job(least=1, a=3)
        made.end(0)
        made.step()
        made.wait(1, commits=4)
        made.wait(2, commits=5)
        made.step()
        assert made.ranks == (2, 1)

    @pytest.mark.parametrize("patience", [100.0, 0.0])
    def test_a_member_that_hangs_is_reported_and_ended(self, patience: float) -> None:
        options = ElasticOptions(np=4, min_np=1, timeout=600.0, patience=patience)
        made, seconds = Job(options, {"a": 2, "b": 2}), patience or 600.0
        made.step()
        made.end(3)
        made.step()
        made.step(1000.0)
        made.wait(0)
        assert made.step(59.0) == []
        assert made.step(1.0) == [Overdue((1,), 60.0, failed=False)]
        assert made.step(seconds - 61.0) == []
        assert made.step(1.0) == [Overdue((1,), seconds, failed=True), Stop(1)]
        assert made.coordinator.lost == {1, 3}

    def test_a_starting_process_is_awaited(self) -> None:
        """The timeout of slots ends when a process is started in the last one."""
        options = ElasticOptions(np=2, min_np=2, max_np=2, timeout=10.0)
        made = Job(options, {"a": 1, "b": 1})
        made.step()
        made.end(1)
        made.step()
        made.wait(0)
        assert made.step() == []
        made.coordinator.list_hosts({"a": 1, "b": 1, "c": 1})
        assert [type(each) for each in made.step(9.0)] == [Start]
        assert made.step(STARTING - 9.5) == []
        made.wait(2, after=0)
        made.step()
        assert made.ranks == (0, 2)

    def test_a_process_that_never_starts_is_not_awaited(self) -> None:
        options = ElasticOptions(np=2, min_np=2, max_np=2, timeout=10.0)
        made = Job(options, {"a": 1, "b": 1, "c": 1})
        made.step()
        made.end(1)
        assert [type(each) for each in made.step()] == [Start, Break]
        made.wait(0)
        assert made.step() == []
        assert made.step(STARTING - 0.5) == []
        (end,) = made.step(0.5)
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "1 rank", "2")

    @pytest.mark.parametrize(("patience", "expected"), [(0.0, SHORTEST_PATIENCE), (0.5, 0.5)])
    def test_a_failed_process_has_time_to_end(self, patience: float, expected: float) -> None:
        """A short wait for slots does not shorten the time of a process that prints its error."""
        options = ElasticOptions(np=2, min_np=1, timeout=1.0, patience=patience, warning=0.0)
        made = Job(options, {"a": 1, "b": 1})
        made.step()
        made.wait(0)
        assert made.step() == [Break(1)]
        assert made.step(expected - 0.25) == []
        assert made.step(0.25) == [Overdue((1,), expected, failed=True), Stop(1)]

    def test_the_others_continue_without_a_member_that_hangs(self) -> None:
        made = job(least=1, a=1, b=1, c=1)
        made.coordinator.list_hosts({"a": 1, "b": 1, "c": 1, "d": 1})
        made.step()
        made.wait(3, after=0)
        assert made.step() == [Notify(1, HostUpdateResult.added)]
        made.wait(0, 2)
        made.step(60.0)
        made.step(540.0)
        made.step()
        assert made.ranks == (0, 2, 3)

    def test_a_rank_without_the_state_cannot_continue_alone(self) -> None:
        made = self.joined()
        made.end(0)
        made.step()
        made.wait(1, commits=0)
        end = made.step()[-1]
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "100")
        assert mentions(end.cure, "checkpoint")

    @pytest.mark.parametrize("on_disk", [False, True])
    def test_the_loss_of_all_ranks_names_the_way_to_continue(self, on_disk: bool) -> None:
        made = self.joined(on_disk)
        made.end(0)
        made.end(1)
        end = made.step()[-1]
        assert isinstance(end, GiveUp)
        assert mentions(end.cure, "--commit-dir")
        assert ("--retries" in end.cure) == on_disk

    def test_a_rank_without_the_state_loads_a_commit_from_disk(self) -> None:
        made = self.joined(on_disk=True)
        made.end(0)
        made.step()
        made.wait(1, commits=0)
        made.step()
        assert (made.ranks, made.membership.lost) == ((1,), 100)
        assert Membership.from_bytes(made.membership.to_bytes()) == made.membership
        made.wait(1, commits=0)  # interrupted before it has loaded
        made.step()
        assert made.membership.lost == 100
        made.wait(1, commits=97)
        made.step()
        assert (made.ranks, made.membership.lost) == ((1,), 0)

    def test_a_rank_that_has_received_the_state_continues(self) -> None:
        made = self.joined()
        made.end(0)
        made.step()
        made.wait(1, commits=100)
        made.step()
        assert made.ranks == (1,)

    def test_an_older_commit_of_a_survivor_is_enough(self) -> None:
        made = job(least=1, a=3)
        made.end(2)
        made.step()
        made.wait(0, commits=100)
        made.wait(1, commits=99)  # interrupted in the commit of the others
        made.step()
        made.end(0)
        made.step()
        made.wait(1, commits=99)
        made.step()
        assert made.ranks == (1,)

    def test_a_rank_without_a_host_hands_over_its_state(self) -> None:
        made = self.joined()
        made.coordinator.list_hosts({"b": 1})
        made.wait(0, commits=100)
        made.wait(1, commits=0)
        made.step()
        assert made.ranks == (0, 1)
        assert made.step() == [Notify(3, HostUpdateResult.removed)]
        made.wait(0, 1, commits=100)
        made.step()
        assert made.ranks == (1,)

    def joined(self, on_disk: bool = False) -> Job:
        """Return a job of a rank with 100 commits, and a rank that receives the state now."""
        made = Job(ElasticOptions(np=1, min_np=1, on_disk=on_disk), {"a": 1})
        made.step()
        made.coordinator.list_hosts({"a": 1, "b": 1})
        made.step()
        made.wait(1, after=0)
        made.step()
        made.wait(0, commits=100)
        made.step()
        assert made.ranks == (0, 1)
        return made

    def test_members_that_lost_their_wire_meet_again(self) -> None:
        made = job(a=3)
        made.wait(1)
        assert made.step() == [Break(1)]
        made.wait(0, 2)
        made.step()
        assert made.ranks == (0, 1, 2)
        assert made.membership.number == 2

    def test_reset_limit(self) -> None:
        made = Job(ElasticOptions(np=3, min_np=1, reset_limit=1), {"a": 3})
        made.step()
        for _ in range(2):
            made.end(made.ranks[-1])
            made.step()
            made.leave()
            made.step()
        (end,) = made.last
        assert isinstance(end, GiveUp)
        assert mentions(end.reason, "1")

    @pytest.mark.parametrize("commits", [0, 1])
    def test_memberships_without_commits_end_the_job(self, commits: int) -> None:
        made = job(least=1, a=2)
        for number in range(FRUITLESS):
            made.wait(0)
            made.step()
            made.wait(0, 1, commits=commits * (number + 1))
            made.step()
        assert made.kinds() == (["Publish"] if commits else ["GiveUp"])


class TestChangesOfHosts:
    def test_new_hosts_join_together(self) -> None:
        made = job(np=2, a=2)
        made.coordinator.list_hosts({"a": 2, "b": 2})
        assert [type(each) for each in made.step()] == [Start, Start]
        made.wait(2, after=0)
        assert made.step() == []
        made.wait(3, after=0)
        assert made.step() == [Notify(1, HostUpdateResult.added)]
        assert made.step() == []
        made.leave()
        made.step()
        assert made.ranks == (0, 1, 2, 3)

    def test_a_late_process_is_not_awaited_for_long(self) -> None:
        made = job(np=2, a=2)
        made.coordinator.list_hosts({"a": 2, "b": 2})
        made.step()
        made.wait(2, after=0)
        assert made.step(TOGETHER - 0.1) == []
        assert made.step(0.2) == [Notify(1, HostUpdateResult.added)]

    def test_removed_host(self) -> None:
        made = job(a=2, b=2)
        made.coordinator.list_hosts({"b": 2})
        assert made.step() == [Notify(1, HostUpdateResult.removed)]
        made.leave()
        made.step()
        assert made.ranks == (2, 3)
        assert made.membership.removed == (0, 1)
        made.end(0, ok=True)
        made.end(1, ok=True)
        assert made.step() == []

    def test_a_host_replaces_another(self) -> None:
        made = job(most=2, a=2)
        made.coordinator.list_hosts({"b": 2})
        assert [type(each) for each in made.step()] == [Start, Start]
        made.wait(2, 3, after=0)
        assert made.step() == [Notify(1, HostUpdateResult.mixed)]
        made.leave()
        made.step()
        assert (made.ranks, made.membership.removed) == ((0, 2), (1,))
        made.step()
        made.leave()
        made.step()
        assert (made.ranks, made.membership.removed) == ((2, 3), (0,))

    def test_fewer_slots_of_a_host(self) -> None:
        made = job(least=1, a=3)
        made.coordinator.list_hosts({"a": 2})
        made.step()
        made.leave()
        made.step()
        assert (made.ranks, made.membership.removed) == ((0, 1), (2,))

    def test_too_few_slots_change_nothing(self) -> None:
        made = job(a=2, b=2)
        made.coordinator.list_hosts({})
        assert made.step(3600.0) == []
        made.coordinator.list_hosts({"a": 2, "b": 2})
        assert made.step() == []

    def test_members_train_on_while_no_host_is_listed(self) -> None:
        made = job(np=2, a=2)
        made.coordinator.list_hosts({"a": 2, "b": 1})
        made.step()
        made.wait(2, after=0)
        assert made.step() == [Notify(1, HostUpdateResult.added)]
        made.coordinator.list_hosts({})
        made.step()
        assert made.step(3600.0) == []
        made.leave()
        assert made.step() == []
        assert made.step(599.0) == []
        assert [type(each) for each in made.step(1.0)] == [GiveUp]

    def test_a_wait_for_hosts_begins_again(self) -> None:
        made = job(a=1, b=1)
        made.wait(0)
        made.coordinator.list_hosts({"a": 1})
        assert made.step() == [Break(1)]
        made.coordinator.list_hosts({"a": 1, "b": 1})
        assert [type(each) for each in made.step(500.0)] == [Overdue]
        made.coordinator.list_hosts({"a": 1})
        assert made.step() == []
        assert made.step(599.0) == []
        assert [type(each) for each in made.step(1.0)] == [GiveUp]

    def test_a_slot_is_free_when_its_process_has_ended(self) -> None:
        made = job(least=1, a=2, b=1)
        made.coordinator.list_hosts({"b": 1})
        made.step()
        made.leave()
        made.step()
        assert made.membership.removed == (0, 1)
        made.coordinator.list_hosts({"a": 2, "b": 1})
        assert made.step() == []
        made.end(0, ok=True)
        (start,) = made.step()
        assert isinstance(start, Start)
        assert (start.member.host, start.member.local_rank) == ("a", 0)

    def test_a_removed_process_that_does_not_end_is_stopped(self) -> None:
        made = job(a=2, b=2)
        made.coordinator.list_hosts({"b": 2})
        made.step()
        made.leave()
        made.step()
        made.end(0, ok=True)
        assert made.step(LEAVE - 1.0) == []
        assert made.step(1.0) == [Stop(1)]
        assert made.step(LEAVE) == []

    def test_a_newcomer_fails(self) -> None:
        made = job(np=2, a=2)
        made.coordinator.list_hosts({"a": 2, "b": 1})
        made.step()
        for delay in (1.0, 2.0, 4.0):
            made.end(max(made.alive))
            assert made.step(delay - 0.1) == []
            (start,) = made.step(0.2)
            assert isinstance(start, Start)
        assert made.ranks == (0, 1)


class TestEnd:
    def test_all_finish(self) -> None:
        made = job(a=2)
        made.end(0, ok=True)
        assert made.step() == []
        made.end(1, ok=True)
        assert made.step() == [Finish()]
        assert made.step() == []

    def test_newcomers_are_stopped(self) -> None:
        made = job(np=2, a=2)
        made.coordinator.list_hosts({"a": 2, "b": 1})
        made.step()
        made.end(0, ok=True)
        made.end(1, ok=True)
        assert made.step() == [Stop(2), Finish()]

    def test_nothing_starts_after_a_rank_has_finished(self) -> None:
        made = job(np=2, a=2)
        made.end(1, ok=True)
        made.coordinator.list_hosts({"a": 2, "b": 2})
        assert made.step(100.0) == []

    def test_a_loss_before_the_end_is_no_failure(self) -> None:
        made = job(a=3)
        made.end(2)
        made.step()
        made.end(0, ok=True)
        made.end(1, ok=True)
        assert made.step() == [Finish()]

    def test_a_loss_near_the_end_does_not_stop_its_host(self) -> None:
        made = job(a=1, b=2)
        made.end(0, ok=True)
        made.end(2)
        made.step()
        made.end(1, ok=True)
        assert made.step() == [Finish()]

    def test_rank_0_decides(self) -> None:
        made = job(a=2)
        made.end(1, ok=True)
        made.end(0)
        (end,) = made.step()
        assert isinstance(end, GiveUp)

    def test_the_last_survivor_finishes_alone(self) -> None:
        made = job(a=3)
        made.end(0)
        made.step()
        made.wait(1)
        made.end(2, ok=True)
        made.step()
        assert made.ranks == (1,)
        made.end(1, ok=True)
        assert made.step()[-1] == Finish()


def test_local_ranks_stay() -> None:
    made = job(least=1, a=3)
    made.end(0)
    made.step()
    made.leave()
    made.step()
    found = placements(made.membership)
    assert [(each.rank, each.local_rank, each.local_size) for each in found] == [
        (0, 1, 2),
        (1, 2, 2),
    ]


@pytest.mark.parametrize("hosts", [128, 1250])
def test_thousands_of_slots(hosts: int) -> None:
    made = Job(
        ElasticOptions(np=8 * hosts, min_np=8), {f"host{number}": 8 for number in range(hosts)}
    )
    made.step()
    assert len(made.ranks) == 8 * hosts
    made.end(0)
    made.step()
    made.leave()
    made.step()
    assert made.ranks == tuple(range(8, 8 * hosts))
