"""The bookkeeping of one step's gradients on one rank: which are in, and what the rank announces.

Pure: no tensor, thread, engine or handle. A step is first *open*: gradients come and fill buckets.
When all ranks have agreed and the buckets are reduced, it is *reduced*; gradients that come after
that (of a second loss) open a further round. It is *complete* when no rank can have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from farandole.strategies.ballot import UNOPENED, UNPLANNED


class Inventory(Protocol):
    """The facts about buckets and gradients that an announcement depends on."""

    @property
    def all_ready(self) -> int:
        """The announcement of a rank whose gradients are all in: the number of buckets, and one
        more if some gradients are sparse.
        """

    @property
    def laid_out(self) -> bool:
        """Whether there are buckets that all ranks have."""

    def has_stray(self, frozen: Iterable[int]) -> bool:
        """Whether a gradient exists that is in no bucket, or is one of ``frozen``."""

    def has_rows(self, index: int) -> bool:
        """Whether the gradient is sparse, and its slot in a bucket."""

    def trainable(self, index: int) -> bool:
        """Whether a gradient may come."""

    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient."""

    @property
    def sparse(self) -> Sequence[int]:
        """The gradients that travel as rows, in no bucket."""


class Unexpected(Enum):
    """The meaning of a gradient that a step does not expect."""

    TAKEN = auto()  # the program threw away gradients of other ranks
    TOO_MANY = auto()  # more backward passes than announced
    STEP_SKIPPED = auto()  # the reduced gradients were thrown away: a new step begins


class GradientStep:
    """One step of ``count`` gradients, each the sum of ``passes`` backward passes.

    ``passes_left``: by gradient. ``sent``: by gradient, whether it is in this round's buckets, or
    was brought by other ranks. ``frozen``: gradients that have a slot in a bucket, but cannot come.
    ``new_gradients``: some were computed since the step began, or its last round ended. ``due``:
    the last pass of some gradient is over. ``misplaced``: a sparse gradient came that is in a
    bucket. ``launched``: the number of buckets that were sent. ``announced_none``: this rank has
    gradients of others, for which it has announced that it had none itself; ``stale``: and no rank
    had new ones, so a step of others needs this rank's own announcement.
    """

    def __init__(self, count: int, passes: int, bucket_sizes: Iterable[int] = ()) -> None:
        self.passes_left = [passes] * count
        self.sent = [False] * count
        self.frozen: set[int] = set()
        self.reduced = False
        self.complete = False
        self.new_gradients = False
        self.due = False
        self.misplaced = False
        self.announced_none = False
        self.stale = False
        self.launched = 0
        self._passes = passes
        self._open_slots = list(bucket_sizes)

    def extend(self, count: int) -> None:
        """Add gradients. They may have one of the backward pass before they came."""
        self.sent += [False] * count
        self.passes_left += [self._passes] * count
        self.complete = False

    def reopen(self, bucket_sizes: Iterable[int]) -> None:
        """Begin a round: all buckets are empty, and have these sizes."""
        self.launched = 0
        self._open_slots = list(bucket_sizes)

    # Gradients come.

    def unexpected(self, index: int, *, known: bool) -> Unexpected | None:
        """Return the meaning of a gradient that may not fit in the step: of one without passes
        left, or after an announcement of none. None if it is in order after all.

        ``known``: it is the object that the parameter's gradient was before.
        """
        if self.announced_none and self.sent[index] and not known:
            return Unexpected.TAKEN
        if self.passes_left[index]:
            return None
        return Unexpected.TOO_MANY if known or not self.reduced else Unexpected.STEP_SKIPPED

    def count_pass(self, index: int) -> bool:
        """Count a backward pass that has added to a gradient. Return whether it was the last."""
        self.passes_left[index] -= 1
        self.new_gradients = True
        if self.passes_left[index]:
            return False
        self.due = True
        return True

    def put(self, index: int, bucket: int, *, sent: bool) -> bool:
        """Fill a gradient's slot; return whether its bucket is full. ``sent``: not only with zeros
        for a gradient that cannot come.
        """
        self._open_slots[bucket] -= 1
        self.sent[index] = sent
        return not self._open_slots[bucket]

    def lacks(self, index: int, *, again: bool) -> bool:
        """Whether the slot of a gradient is empty when a round ends. In a further round
        (``again``), all are.
        """
        return again or not (self.sent[index] or index in self.frozen)

    def next_full(self) -> int | None:
        """Return the bucket to launch next, in the order of all ranks; None while it is not
        full.
        """
        number = self.launched
        if number == len(self._open_slots) or self._open_slots[number]:
            return None
        return number

    def belongs(self, index: int) -> bool:
        """Whether a gradient was computed or brought in this step, also if it is frozen since."""
        return self.sent[index] or self.passes_left[index] < self._passes

    def unfinished(self) -> list[int]:
        """The gradients to which more passes may add."""
        return [index for index, left in enumerate(self.passes_left) if left]

    # The ranks agree.

    def announcement(self, stock: Inventory) -> int:
        """Return ``Ballot.ready_buckets``: how many buckets, from the first one on, lack none of
        this rank's gradients.
        """
        if not stock.laid_out:
            return UNOPENED
        if self.misplaced or stock.has_stray(self.frozen):
            return UNPLANNED
        if self.reduced and not self.new_gradients:
            return stock.all_ready
        # of fewer passes than announced, or the program's own
        if any(self.passes_left) and any(map(stock.has_rows, self.unfinished())):
            return UNPLANNED
        if self.reduced:
            return 0
        for number, left in enumerate(self._open_slots):
            if left:
                return number
        late = any(self.passes_left[index] and stock.trainable(index) for index in stock.sparse)
        return len(self._open_slots) if late else stock.all_ready

    def announce(self, stock: Inventory, *, none_here: bool) -> int:
        """Note that this rank announces its gradients, and return ``announcement``. ``none_here``:
        it computed none, and more may come, so it never announces that all are ready.
        """
        ready = self.announcement(stock)
        self.announced_none = none_here
        self.stale = False
        return min(ready, max(0, stock.all_ready - 1)) if none_here else ready

    def on_tally(self, *, new_gradients: bool) -> None:
        """Note whether any rank had new gradients when all had announced theirs."""
        self.stale = self.announced_none and not new_gradients

    def can_announce_none(self, stock: Inventory) -> bool:
        """Whether this rank may announce "none here". Gradients that exist before any was computed
        are those of an earlier step.
        """
        fresh = self.new_gradients or self.reduced
        return not self.stale and (fresh or not stock.has_gradient())

    def has_to_reduce(self, agreed: int, all_ready: int) -> bool:
        """Whether the buckets have to be reduced, now that the ranks have ``agreed``. If not, the
        step is complete.
        """
        if self.reduced and agreed == all_ready:
            self.complete = True
            return False
        return True

    def finish(self, agreed: int, all_ready: int) -> None:
        """Note that the buckets are reduced."""
        if agreed == UNPLANNED:
            self.misplaced = False
        self.reduced = True
        self.new_gradients = False
        self.complete = agreed == all_ready

    def arrived(self, indexes: Sequence[int], empty: Sequence[int]) -> None:
        """Note which gradients a reduced bucket of ``indexes`` brought. ``empty``: the slots that
        no rank had one for.
        """
        for slot, index in enumerate(indexes):
            self.sent[index] = slot not in empty

    # The ranks change.

    def unsent_passes(self) -> list[int] | None:
        """Return the passes that are left of a step that has begun, and sent nothing yet. They
        count after another ``init()``. None at any other time.
        """
        between = self.new_gradients and not self.reduced and not self.launched
        return self.passes_left if between else None

    def resume(self, passes_left: list[int]) -> None:
        """Go on with a step that was begun before another ``init()``."""
        self.passes_left = passes_left
        self.new_gradients = True
