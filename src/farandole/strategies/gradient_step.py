"""The bookkeeping of one step's gradients on one rank: which are ready, and the announcement.

Pure: no tensors, threads, engines or handles. A step is first *open*: gradients arrive and fill
buckets. When all ranks have agreed and the buckets are reduced, it is *reduced*; later gradients
(of a second loss) open a further round. The step is *complete* when no rank can have more
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from farandole.strategies.ballot import UNOPENED, UNPLANNED


class Inventory(Protocol):
    """The properties of buckets and gradients that determine an announcement."""

    @property
    def all_ready(self) -> int:
        """The announcement of a rank whose gradients are all ready: the number of buckets, plus one
        if any gradient is sparse.
        """

    @property
    def laid_out(self) -> bool:
        """True if all ranks have laid out these buckets."""

    def has_stray(self, frozen: Iterable[int]) -> bool:
        """Return whether a gradient has no bucket, or belongs to ``frozen``."""

    def has_rows(self, index: int) -> bool:
        """Return whether the gradient is sparse although it has a slot in a bucket."""

    def trainable(self, index: int) -> bool:
        """Return whether the parameter may get a gradient."""

    def has_gradient(self) -> bool:
        """Return whether any parameter has a gradient."""

    @property
    def sparse(self) -> Sequence[int]:
        """The gradients that are sent as rows, without a bucket."""


class Unexpected(Enum):
    """The meaning of an unexpected gradient."""

    TAKEN = auto()  # the program dropped gradients of other ranks
    TOO_MANY = auto()  # more backward passes than announced
    STEP_SKIPPED = auto()  # the program dropped the reduced gradients: a new step begins


class GradientStep:
    """One step of ``count`` gradients, each the sum of ``passes`` backward passes.

    - ``passes_left``: The remaining backward passes, by gradient.
    - ``sent``: By gradient, whether it is in this round's buckets or was received from other ranks.
    - ``frozen``: Gradients with a slot in a bucket whose parameters are frozen.
    - ``new_gradients``: Whether any was computed since the beginning of the step or the end of its
      last round.
    - ``due``: Whether any gradient has had its last pass.
    - ``misplaced``: Whether a gradient with a slot in a bucket is sparse.
    - ``launched``: The number of buckets sent.
    - ``announced_none``: Whether this rank announced no gradients and received other ranks'
      gradients.
    - ``stale``: Whether no rank had new gradients then, so that a step on other ranks needs this
      rank's real announcement.
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
        """Add gradients. Gradients of the backward pass before the call count."""
        self.sent += [False] * count
        self.passes_left += [self._passes] * count
        self.complete = False

    def reopen(self, bucket_sizes: Iterable[int]) -> None:
        """Begin a round with empty buckets of these sizes."""
        self.launched = 0
        self._open_slots = list(bucket_sizes)

    # Arrival of gradients.

    def unexpected(self, index: int, *, known: bool) -> Unexpected | None:
        """Return the meaning of a gradient that has no passes left or follows an announcement of no
        gradients. None if it is expected.

        ``known``: it is the same object as the parameter's previous gradient.
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
        """Fill a gradient's slot; return whether its bucket is full. ``sent``: False for the zeros
        of a frozen parameter.
        """
        self._open_slots[bucket] -= 1
        self.sent[index] = sent
        return not self._open_slots[bucket]

    def lacks(self, index: int, *, again: bool) -> bool:
        """Return whether the slot of a gradient is empty when a round ends. In a further round
        (``again``), all slots are empty.
        """
        return again or not (self.sent[index] or index in self.frozen)

    def next_full(self) -> int | None:
        """Return the bucket to launch next, in the order of all ranks; None while it is
        incomplete.
        """
        number = self.launched
        if number == len(self._open_slots) or self._open_slots[number]:
            return None
        return number

    def belongs(self, index: int) -> bool:
        """Return whether a gradient was computed or received in this step, even if it is frozen
        now.
        """
        return self.sent[index] or self.passes_left[index] < self._passes

    def unfinished(self) -> list[int]:
        """Return the gradients with passes left."""
        return [index for index, left in enumerate(self.passes_left) if left]

    # Agreement of the ranks.

    def announcement(self, stock: Inventory) -> int:
        """Return ``Ballot.ready_buckets``: the number of leading buckets that lack no gradient of
        this rank, or UNOPENED or UNPLANNED.
        """
        if not stock.laid_out:
            return UNOPENED
        if self.misplaced or stock.has_stray(self.frozen):
            return UNPLANNED
        if self.reduced and not self.new_gradients:
            return stock.all_ready
        # from fewer passes than announced, or set by the program
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
        """Record that this rank announces its gradients, and return ``announcement``.

        ``none_here``: it computed none so far, so it never announces that all are ready.
        """
        ready = self.announcement(stock)
        self.announced_none = none_here
        self.stale = False
        return min(ready, max(0, stock.all_ready - 1)) if none_here else ready

    def on_tally(self, *, new_gradients: bool) -> None:
        """Record whether any rank announced new gradients."""
        self.stale = self.announced_none and not new_gradients

    def can_announce_none(self, stock: Inventory) -> bool:
        """Return whether this rank may announce no gradients. Gradients that exist before the first
        backward pass belong to an earlier step.
        """
        fresh = self.new_gradients or self.reduced
        return not self.stale and (fresh or not stock.has_gradient())

    def has_to_reduce(self, agreed: int, all_ready: int) -> bool:
        """Return whether the buckets must be reduced, given the ``agreed`` announcement. If not,
        the step is complete.
        """
        if self.reduced and agreed == all_ready:
            self.complete = True
            return False
        return True

    def finish(self, agreed: int, all_ready: int) -> None:
        """Record that the buckets are reduced."""
        if agreed == UNPLANNED:
            self.misplaced = False
        self.reduced = True
        self.new_gradients = False
        self.complete = agreed == all_ready

    def arrived(self, indexes: Sequence[int], empty: Sequence[int]) -> None:
        """Record the gradients of a reduced bucket of ``indexes``. ``empty``: the slots without a
        gradient on any rank.
        """
        for slot, index in enumerate(indexes):
            self.sent[index] = slot not in empty

    # Changes of the ranks.

    def unsent_passes(self) -> list[int] | None:
        """Return the remaining passes of a step that has begun but sent nothing yet, else None.
        They still count after another ``init()``.
        """
        between = self.new_gradients and not self.reduced and not self.launched
        return self.passes_left if between else None

    def resume(self, passes_left: list[int]) -> None:
        """Continue a step that began before another ``init()``."""
        self.passes_left = passes_left
        self.new_gradients = True
