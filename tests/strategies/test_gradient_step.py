"""The bookkeeping of a step: tables of events, with no tensor and no engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.strategies.ballot import NO_WORD, UNOPENED, UNPLANNED, WORDS, Ballot, Tally
from farandole.strategies.gradient_step import GradientStep, Unexpected

HOMES = {0: 0, 1: 0, 2: 1}  # two buckets of two gradients and of one; gradient 3 is in none


class Stock:
    """The gradients of a rank, as a step asks about them."""

    def __init__(self, sparse: Sequence[int] = (), *, laid_out: bool = True) -> None:
        self.sparse = sparse
        self.laid_out = laid_out
        self.present: set[int] = set()
        self.rows: set[int] = set()

    @property
    def all_ready(self) -> int:
        return 3 if self.sparse else 2

    def has_stray(self, frozen: Iterable[int]) -> bool:
        outside = {3} - {*self.sparse}
        return not self.present.isdisjoint(outside | {*frozen})

    def has_rows(self, index: int) -> bool:
        return index in self.rows

    def has_gradient(self) -> bool:
        return bool(self.present)

    def trainable(self, index: int) -> bool:
        return True


class Rank:
    """A step and its stock, driven by words: one digit for the pass of a gradient."""

    def __init__(self, passes: int = 1, **stock: object) -> None:
        self.step = GradientStep(4, passes, [2, 1])
        self.stock = Stock(**stock)  # type: ignore[arg-type]

    def play(self, events: str) -> None:
        """Digits: a backward pass adds to that gradient. ``f``: gradient 0 is frozen. ``R``: the
        ranks reduce what there is. ``N``: this rank announces that it has none. ``q``: and no rank
        had new ones. ``m``: a sparse gradient came that is in a bucket. ``s``: gradient 2 is there
        as rows.
        """
        for event in events:
            if event.isdigit():
                self.gradient(int(event))
            else:
                {
                    "f": self.freeze,
                    "R": self.reduce,
                    "N": lambda: self.step.announce(self.stock, none_here=True),
                    "q": lambda: self.step.on_tally(new_gradients=False),
                    "m": lambda: setattr(self.step, "misplaced", True),
                    "s": lambda: self.stock.rows.add(2),
                }[event]()

    def gradient(self, index: int) -> None:
        assert self.step.unexpected(index, known=True) is None
        self.stock.present.add(index)
        fits = self.step.count_pass(index) and not self.step.reduced
        if fits and index not in self.step.frozen and index in HOMES:
            self.step.put(index, HOMES[index], sent=True)
        self.launch()

    def freeze(self) -> None:
        self.step.frozen.add(0)
        self.step.put(0, HOMES[0], sent=False)

    def launch(self) -> None:
        while self.step.next_full() is not None:
            self.step.launched += 1

    def reduce(self) -> None:
        agreed = self.step.announce(self.stock, none_here=False)
        if self.step.has_to_reduce(agreed, self.stock.all_ready):
            again = self.step.reduced
            if again:
                self.step.reopen([2, 1])
            for index, bucket in HOMES.items():
                if self.step.lacks(index, again=again):
                    self.step.put(index, bucket, sent=index in self.stock.present)
            self.launch()
            for bucket, indexes in enumerate(([0, 1], [2])):
                empty = [s for s, index in enumerate(indexes) if index not in self.stock.present]
                assert self.step.launched > bucket
                self.step.arrived(indexes, empty)
            self.step.finish(agreed, self.stock.all_ready)
        self.step.due = False


@pytest.mark.parametrize(
    ("events", "announced"),
    [
        ("", 0),
        ("0", 0),
        ("01", 1),
        ("2", 0),  # the order of buckets counts
        ("012", 2),
        ("f", 0),
        ("f1", 1),
        ("f12", 2),
        ("f012", UNPLANNED),  # a gradient that could not come
        ("3", UNPLANNED),  # one in no bucket
        ("m", UNPLANNED),
        ("s", UNPLANNED),
        ("0R", 2),  # nothing new since
        ("0R1", 0),  # a late one: a further round
        ("0R1R", 2),
        ("012R", 2),
    ],
)
def test_announcements(events: str, announced: int) -> None:
    rank = Rank()
    rank.play(events)
    if "f0" in events:
        rank.stock.present.add(0)
    assert rank.step.announcement(rank.stock) == announced


def test_buckets_that_not_all_ranks_have() -> None:
    rank = Rank(laid_out=False)
    assert rank.step.announcement(rank.stock) == UNOPENED
    rank.play("012")
    assert rank.step.announcement(rank.stock) == UNOPENED


def test_sparse_gradients_are_waited_for() -> None:
    rank = Rank(sparse=[3])
    rank.play("012")
    assert rank.step.announcement(rank.stock) == 2
    rank.play("3")
    assert rank.step.announcement(rank.stock) == 3


def test_the_last_pass_counts() -> None:
    rank = Rank(passes=2)
    rank.play("012")
    assert not rank.step.due
    assert rank.step.unsent_passes() == [1, 1, 1, 2]
    assert rank.step.announcement(rank.stock) == 0
    rank.play("0")
    assert rank.step.due
    rank.play("12")
    assert rank.step.announcement(rank.stock) == 2
    assert rank.step.unsent_passes() is None  # a bucket is on its way


def test_a_step_that_is_resumed_counts_the_passes_before() -> None:
    rank = Rank(passes=2)
    rank.play("01")
    other = Rank(passes=2)
    other.step.resume(rank.step.unsent_passes() or [])
    other.play("0")
    assert other.step.due
    assert other.step.sent == [True, False, False, False]


@pytest.mark.parametrize(
    ("events", "known", "problem"),
    [
        ("0", False, Unexpected.TOO_MANY),
        ("0", True, Unexpected.TOO_MANY),
        ("012R", True, Unexpected.TOO_MANY),  # it was kept, and added to
        ("012R", False, Unexpected.STEP_SKIPPED),
        ("0NR", True, Unexpected.TOO_MANY),
    ],
)
def test_gradients_that_are_not_expected(events: str, known: bool, problem: Unexpected) -> None:
    rank = Rank()
    rank.play(events)
    assert rank.step.unexpected(0, known=known) is problem


def test_gradients_of_others_that_were_thrown_away() -> None:
    rank = Rank()
    rank.play("N")
    rank.step.arrived([0, 1], [1])
    assert rank.step.unexpected(0, known=False) is Unexpected.TAKEN
    assert rank.step.unexpected(0, known=True) is None


def test_none_is_announced_while_any_rank_has_new_gradients() -> None:
    rank = Rank()
    assert rank.step.can_announce_none(rank.stock)
    rank.play("N")
    assert rank.step.can_announce_none(rank.stock)
    rank.play("q")
    assert not rank.step.can_announce_none(rank.stock)
    rank.step.announce(rank.stock, none_here=False)
    assert rank.step.can_announce_none(rank.stock)


def test_none_is_not_announced_over_gradients_of_the_step_before() -> None:
    rank = Rank()
    rank.stock.present.add(0)
    assert not rank.step.can_announce_none(rank.stock)
    rank.play("0")
    assert rank.step.can_announce_none(rank.stock)


def test_none_is_never_everything() -> None:
    rank = Rank()
    rank.play("012R")
    assert rank.step.announce(rank.stock, none_here=True) == 1
    assert rank.step.announce(rank.stock, none_here=False) == 2


def test_a_step_is_complete_when_no_rank_can_have_more() -> None:
    rank = Rank()
    rank.play("01R")
    assert rank.step.reduced
    assert not rank.step.complete
    rank.play("R")
    assert rank.step.complete
    rank.step.extend(1)  # a parameter, which may have a gradient
    assert not rank.step.complete


@given(
    events=st.lists(st.sampled_from("0123R"), max_size=12),
    passes=st.integers(1, 3),
)
def test_launches_are_in_order_and_passes_are_counted(events: list[str], passes: int) -> None:
    rank = Rank(passes=passes)
    for event in events:
        before = rank.step.launched
        if event == "R" or rank.step.passes_left[int(event)]:
            rank.play(event)
        assert rank.step.launched >= before or rank.step.reduced
        assert all(left >= 0 for left in rank.step.passes_left)
        assert not (rank.step.complete and rank.step.new_gradients and event == "R")


COUNTS = st.integers(-(2**40), 2**40)


@given(
    ballots=st.lists(
        st.builds(
            Ballot,
            ready_buckets=st.integers(UNOPENED, 9),
            bucket_bytes=st.just(NO_WORD),
            compare_replicas=st.booleans(),
            steps=COUNTS,
            spread=st.integers(0, 3),
            new_gradients=st.booleans(),
        ),
        min_size=1,
    ),
    limit=COUNTS,
)
def test_the_tally_of_ballots(ballots: list[Ballot], limit: int) -> None:
    ballots[0] = ballots[0]._replace(bucket_bytes=limit)  # rank 0's
    table = np.zeros((len(ballots), WORDS), np.int64)
    for row, ballot in zip(table, ballots, strict=True):
        ballot.pack(row)
    joined = np.full((1, WORDS), NO_WORD)
    tally = Tally.unpack(np.concatenate([table, joined]).min(axis=0))
    steps = [ballot.steps for ballot in ballots]
    assert tally == Tally(
        ready_buckets=min(ballot.ready_buckets for ballot in ballots),
        bucket_bytes=limit,
        compare_replicas=any(ballot.compare_replicas for ballot in ballots),
        spread=max(steps) - min(steps),
        spread_was_known={ballot.spread for ballot in ballots} == {max(steps) - min(steps)},
        new_gradients=any(ballot.new_gradients for ballot in ballots),
    )
