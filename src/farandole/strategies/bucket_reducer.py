"""Every step ends with the same gradients on all ranks: buckets, reduced while backward still
computes.

A *round* reduces all buckets once. A bucket is launched as soon as its gradients are in and its
predecessor is launched, so the order is the same on all ranks (where there is no core to spare:
when backward ends). When backward ends, the ranks tell each other how many buckets they filled
(``ballots``); one that somebody could not fill (a parameter without a gradient) is filled with
zeros, and all wait: gradients are final when ``backward()`` returns. If a gradient comes after that
(a second loss), a further round brings it in: averaging what is already average changes nothing.

In the first step, the order in which gradients come is recorded, and the buckets are laid out in it
for good (``bucket_layout``). Sparse gradients travel as rows and are in no bucket: they are
exchanged at the end of each round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from farandole.base.digests import combined
from farandole.base.exchange_names import BUCKETS, exchange_name
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.checks.agreement import Agreement, Replica
from farandole.checks.consistency import check_same_parameters
from farandole.core.engine import Engine, Entry, Handle
from farandole.job import context
from farandole.job.config.settings import spare_cores
from farandole.strategies import ballots
from farandole.strategies.bucket_layout import NO_WORD, BucketLayout
from farandole.strategies.buckets import Gradient
from farandole.strategies.codecs import HandingOver, claim, codec
from farandole.strategies.optimizer_id import OptimizerId
from farandole.strategies.options import DROPPED, TAKEN, TOO_MANY, GradientOptions
from farandole.strategies.residual_scale import ResidualScale

_UNOPENED = -2  # "there are no buckets yet that all ranks have"
_UNPLANNED = -1  # "I have a gradient that is in no bucket, or in one where it cannot be"
_WORDS = 8  # of a ballot


class BucketReducer:
    """Reduces gradients that come one by one. ``flat=False`` keeps them in their own memory, as
    codecs and GPUs do.
    """

    def __init__(
        self,
        gradients: Sequence[Gradient],
        options: GradientOptions,
        *,
        flat: bool = True,
        replica: Replica | None = None,
    ) -> None:
        """``options.groups``: their number, or the indexes of their members among ``gradients``."""
        self.gradients = list(gradients)
        self.codec = codec(options.codec)
        self.residual_scale = ResidualScale(self.codec)
        self.options = options
        self._passes, self._replica = options.passes, replica
        self._number = OptimizerId(options.process_set)
        self.lock = threading.RLock()  # hooks may come from one thread per device
        self.backward = -1  # the one that it heard of last
        self._engine: Engine | None = None
        self._layout = BucketLayout(options, self.codec, flat=flat and self.codec is None)
        # the order in which gradients came, while it is being recorded
        self._order: dict[int, None] | None = None
        self._rounds = self._joins = 0
        self._overlap = False
        self._dirty = False
        self._agreement: Agreement | None = None  # the looks whether the ranks train one model
        self._asked = False  # some rank wants one
        self._steps = self._spread = 0  # of this rank; by how much ranks differ in them
        self._vote: Handle | None = None  # under way
        # a gradient of this rank that is not finite, of the latest round
        self.unfit: int | None = None
        self._begin()
        ballots.living.add(self)

    @property
    def engine(self) -> Engine:
        return self._number.engine

    # What the framework calls.

    def ready(self, index: int, gradient: Any) -> None:
        """One more backward pass has added to gradient ``index``."""
        with self.lock:
            if not self._dirty or self._left_behind():
                claim(self.codec, self.options.owner, [one.identity[0] for one in self.gradients])
                self._enter()
                self._skip_frozen()
            if self._idled and self._in[index] and not self.gradients[index].holds(gradient):
                # the program threw them away, without a word to this optimizer
                raise AssertionError(TAKEN)
            if not self._left[index]:
                if not self._closed or self.gradients[index].holds(gradient):
                    name = self.gradients[index].identity[0]
                    raise AssertionError(TOO_MANY.format(name=name, passes=self._passes + 1))
                # the reduced gradients were thrown away (a step was skipped): start over
                self._begin()
            self._left[index] -= 1
            self._dirty = True
            if self._left[index]:
                return
            self.due = True
            home = self._layout.home[index]
            if home is not None and self.gradients[index].is_sparse(gradient):
                self._misplaced = True
                gradient = None
            if self._closed or index in self._frozen:
                return
            if self._order is not None:
                self._order[index] = None  # once: some programs never call ``step``
            if self._sampling and gradient is not None:
                self._samples[index] = self.gradients[index].digest(gradient)
            if home is None:
                return
            bucket, slot = home
            bucket.put(slot, gradient)
            self._in[index] = True  # or missing: it cannot come in this round
            if not bucket.left and self._overlap:
                self._launch()

    def end_of_backward(self) -> None:
        """Backward pass ``backward`` is over. Makes gradients final, also those of others that it
        has computed, if this was the last pass of the step for some of them.
        """
        if self.due:
            ballots.settle(
                [one for one in tuple(ballots.living) if one.due and one.backward == self.backward]
            )

    def before_step(self) -> None:
        """All gradients are final when this returns, also those that were never computed."""
        self._enter()
        while not self._tight:
            ballots.settle([self])
        self._begin()

    def after_step(self, named_parameters: Sequence[tuple[str, Any]] = ()) -> None:
        """After the first step: lay out the buckets in the order in which gradients came."""
        self._steps += 1
        if self._order is not None and self._rounds and not self._dirty:
            order, self._order = self._order, None
            self._plan(order)
        elif self._order is None and not self._dirty and self._layout.outdated():
            self._plan(self._layout.order)
        if self._closed and not self._dirty:  # the program stepped without ``before_step``
            self._begin()

    def anything_new(self) -> bool:
        """Has any rank computed gradients since the last ``before_step``? Collective."""
        self._enter()
        self._fill_in(0 if self._dirty else 1)
        self.engine.run(self._ballot_of(f"{self._name}.anew"))
        return self._counted() == 0

    def check_droppable(self) -> None:
        """Raise AssertionError if gradients cannot be thrown away now; if they can, expect new
        ones.
        """
        if self._dirty:
            raise AssertionError(DROPPED)
        if self._idled:
            raise AssertionError(TAKEN)
        if self._closed:
            self._begin()

    def start_over(self) -> None:
        """Expect a step's gradients, whatever came of them: the program goes back to an earlier
        state. Buckets that are under way, for backward raised, stay so: other ranks may wait for
        them.
        """
        with self.lock:
            if self._closed or not self._next or (self._engine is not None and self._engine.ended):
                self._begin()

    def set_passes(self, passes: int) -> None:
        """Expect ``passes`` backward passes per step from now on."""
        self._passes = passes
        self._begin()

    def extend(self, gradients: Sequence[Gradient]) -> None:
        """More parameters. They are laid out with the others when their first gradient comes."""
        self._layout.extend(len(self.gradients), len(gradients))
        self.gradients += gradients
        self._in += [False] * len(gradients)
        self._left += [self._passes] * len(gradients)
        # they may have a gradient, of the backward pass that was before they came
        self._tight = False

    def clear(self) -> None:
        """Forget all parameters: others come in their place, with ``extend``."""
        # what is a sum already will be summed up once more
        if self._closed and self.options.op is ReduceOp.SUM:
            for index, gradient in enumerate(self.gradients):
                if (self._in[index] or index in self._layout.sparse) and self._current(
                    index
                ) is not None:
                    gradient.amplify(1 / self.engine.size, None)
        self.gradients, self._engine = [], None
        self._layout.clear()
        self._begin()

    # A round.

    def _begin(self) -> None:
        """Expect a step's gradients."""
        count = len(self.gradients)
        self._left = [self._passes] * count  # backward passes to come
        self._in = [False] * count  # sent in this round, or brought by other ranks
        # what is reduced already of gradients that may grow yet (op=Sum)
        self._sums: dict[int, Any] = {}
        self._frozen: set[int] = set()  # in a bucket, but without hope of a gradient
        self._closed = False  # the round is over: gradients are final, unless more come
        self._tight = False  # ... and no more can come, on no rank
        self._dirty = False  # gradients were computed since the round began, or ended
        self.due = False
        self._idled: bool = False  # has gradients of others, for which it has voted idly
        # ... and no more came: a step of others needs this rank's own word
        self._vain: bool = False
        self._misplaced = False  # a sparse gradient came that is in a bucket
        self._sampling = self._agreement is not None and self._agreement.soon()
        self._samples: dict[int, int] = {}  # digests of this rank's own gradients
        self._reopen()

    def _reopen(self) -> None:
        self._next = 0
        for bucket in self._layout.buckets:
            bucket.open()

    def _skip_frozen(self) -> None:
        """No bucket waits for parameters that are frozen now."""
        if self._closed:
            return
        for index, home in enumerate(self._layout.home):
            if home is not None and not self._in[index] and not self.gradients[index].trainable():
                self._frozen.add(index)
                home[0].put(home[1], None)

    def _launch(self, *, again: bool = False, soon: bool = False) -> None:
        assert self._engine is not None
        buckets = self._layout.buckets
        while self._next < len(buckets) and not buckets[self._next].left:
            if not self._next:
                self.residual_scale.update(self.gradients)
                self.unfit = None
            if not again and self.unfit is None and self._agreement is not None:
                self._glance(self._next)
            buckets[self._next].launch(self._engine, again=again, soon=soon)
            self._next += 1

    def _glance(self, place: int) -> None:
        slot = self._layout.buckets[place].unfit()
        if slot is not None:
            self.unfit = self._layout.members[place][slot]

    def enters(self) -> bool:
        if not self.lock.acquire(blocking=False):
            return False  # its own thread is there
        try:
            self._enter()
            # or are gradients there, they are of the step before
            fresh = self._dirty or self._closed
            return not self._vain and (
                fresh or all(gradient.current() is None for gradient in self.gradients)
            )
        finally:
            self.lock.release()

    def vote(self, told: Callable[[], None] | None = None, *, idle: bool = False) -> None:
        word = self._filled()
        self._fill_in(min(word, max(0, self._everything() - 1)) if idle else word)
        self._idled, self._vain = idle, False
        self._vote = self.engine.submit(self._ballot, soon=True, told=told)

    def settle(self) -> None:
        """Bring in all gradients that any rank has now. ``_tight``, if no rank can have more."""
        vote, self._vote = self._vote, None
        assert vote is not None
        try:
            vote.wait()
            self._settle_once(self._counted())
            if self._asked:
                self._look()
        except Exception:
            self._begin()  # the engine goes on after an error, and so does this
            raise

    def _settle_once(self, agreed: int) -> None:
        self.due = False
        if agreed == _UNOPENED:
            self._check_alike()
            self._plan(self._order or self._layout.order)
            self._layout.common = True
        everything = self._everything()
        if self._closed and agreed == everything:
            self._tight = True
            return
        again = self._closed
        if again:
            self._reopen()
        rows = self._set_aside() if agreed == _UNPLANNED else {}
        self._fill(again=again)
        self._finish()
        if agreed == _UNPLANNED:
            self._check_alike()  # it may be a new parameter
            before = set(self._layout.sparse)
            self._plan(self._order or self._layout.order, rows)
            self._bring_back(rows, [index for index in self._layout.sparse if index not in before])
            self._fill(again=True)
            self._finish()
            self._misplaced = False
        self._reduce_sparse(again=again)
        self._closed, self._dirty = True, False
        self._rounds += 1
        self._tight = agreed == everything

    def _filled(self) -> int:
        """This rank's word to the others: the number of buckets that it filled with no gradient
        missing.
        """
        if not self._layout.common:
            return _UNOPENED
        if self._misplaced:
            return _UNPLANNED
        if any(
            self.gradients[index].current() is not None
            for index in (*self._layout.outside, *self._frozen)
        ):
            return _UNPLANNED
        if self._closed and not self._dirty:
            return self._everything()
        if any(self._left) and any(
            left and self._has_rows(index) for index, left in enumerate(self._left)
        ):
            return _UNPLANNED  # of fewer passes than announced, or the program's own
        if self._closed:
            return 0
        buckets = self._layout.buckets
        full = next((place for place, bucket in enumerate(buckets) if bucket.left), len(buckets))
        late = any(
            self._left[index] and self.gradients[index].trainable() for index in self._layout.sparse
        )
        return self._everything() if full == len(buckets) and not late else full

    def _has_rows(self, index: int) -> bool:
        """Is its gradient sparse, and its place in a bucket?"""
        if self._layout.home[index] is None:
            return False
        gradient = self._current(index)
        return gradient is not None and self.gradients[index].is_sparse(gradient)

    def _set_aside(self) -> dict[int, Any]:
        """This rank's sparse gradients that have places in buckets. Where other ranks have dense
        ones, the mean of those comes in their place.
        """
        return {
            index: self.gradients[index].take()
            for index in range(len(self.gradients))
            if self._has_rows(index)
        }

    def _bring_back(self, rows: Mapping[int, Any], new: Sequence[int]) -> None:
        """``rows`` on top of what is reduced already. ``new``: those that travel as rows from now
        on, on all ranks.
        """
        if self.options.op is ReduceOp.SUM:
            self._sums.update(
                {index: self.gradients[index].copy() for index in new if self._in[index]}
            )
        for index, gradient in rows.items():
            self.gradients[index].add(gradient)

    def _everything(self) -> int:
        """The word of a rank whose gradients are all in: the number of buckets, and one for all
        sparse ones.
        """
        return len(self._layout.buckets) + bool(self._layout.sparse)

    def _fill(self, *, again: bool) -> None:
        """Put in what is not in yet, and launch the rest."""
        if again and self.options.op is ReduceOp.SUM:
            self._prepare_sums()
        for index, home in enumerate(self._layout.home):
            if home is not None and (again or not (self._in[index] or index in self._frozen)):
                if again and self._coded_alone(index):
                    home[0].fresh.add(home[1])
                gradient = self._current(index)
                if gradient is not None and self.gradients[index].is_sparse(gradient):
                    gradient = None
                home[0].put(home[1], gradient)
                self._in[index] = gradient is not None
        self._launch(again=again, soon=True)

    def _coded_alone(self, index: int) -> bool:
        """In a round after the first: does its first gradient come now, and by a codec, where
        others are reduced?
        """
        return self.codec is not None and not self._in[index]

    def _prepare_sums(self) -> None:
        """What is new counts ``size`` times: from the mean of these comes the sum of what is
        new.
        """
        for index, home in enumerate(self._layout.home):
            gradient = self.gradients[index]
            if (
                home is not None
                and (index in self._sums or not self._in[index])
                and not self._coded_alone(index)
            ):
                current = self._current(index)
                if current is not None and not gradient.is_sparse(current):
                    gradient.amplify(self.engine.size, self._sums.get(index))

    def _finish(self) -> None:
        for bucket, indexes in zip(self._layout.buckets, self._layout.members, strict=True):
            empty = bucket.finish()
            for slot, index in enumerate(indexes):
                self._in[index] = slot not in empty
        if self.options.op is ReduceOp.SUM:
            due = (index for index, left in enumerate(self._left) if left and self._in[index])
            kept = {
                index: self._sums[index] for index in self._layout.sparse if index in self._sums
            }
            self._sums = kept | {index: self.gradients[index].copy() for index in due}

    def _reduce_sparse(self, *, again: bool) -> None:
        """The sparse gradients. As in buckets, what is new counts ``size`` times when sums are
        exchanged again. Those that were in a bucket of this round have been reduced, as far as they
        were dense.
        """
        summing = self.options.op is ReduceOp.SUM
        if self._layout.sparse:
            self._add_unsent()
        for index in self._layout.sparse:
            gradient, once_more = self.gradients[index], again or self._in[index]
            if once_more and summing and gradient.current() is not None:
                gradient.amplify(self.engine.size, self._sums.get(index))
            options = self.options.of_reduced() if once_more else self.options
            gradient.reduce_sparse(f"{self._name}.sparse.{index}", options)
            if summing and gradient.current() is not None:
                self._sums[index] = gradient.copy()

    def _add_unsent(self) -> None:
        """What the codec has not sent of gradients while they were dense goes with their rows: it
        sees them no more.
        """
        if not isinstance(self.codec, HandingOver):
            return
        self.residual_scale.update(self.gradients)
        for index in self._layout.sparse:
            gradient = self.gradients[index]
            unsent = self.codec.hand_over(gradient.identity[0]) if gradient.trainable() else None
            # it may be a checkpoint's, of another model
            if unsent is not None and len(unsent) == gradient.count:
                gradient.add_flat(unsent)

    def _current(self, index: int) -> Any:
        """A gradient of this step counts, also if its parameter was frozen since."""
        return self.gradients[index].current(
            frozen=self._in[index] or self._left[index] < self._passes
        )

    # Agreement.

    def _fill_in(self, value: int) -> None:
        """A ballot, with this rank's ``value``. On the way, everybody hears what rank 0 wants of
        buckets, and whether some rank wants to look at all replicas.
        """
        # an exchange, not a layout
        due = self._agreement is not None and self._layout.common and self._agreement.due()
        limit = self.engine.sizes.bucket_bytes if self.engine.rank == 0 else NO_WORD
        news = -int(self._dirty)
        self._word[:] = (
            value,
            limit,
            -int(due),
            self._steps,
            -self._steps,
            self._spread,
            -self._spread,
            news,
        )

    def _counted(self) -> int:
        """The smallest value of all ranks."""
        value, self._layout.wished, wanted, least, most, *before, news = self._word.tolist()
        self._vain = self._idled and not news
        self._spread = -most - least
        # ranks that had joined know an older spread: what it was is agreed upon, too, or some would
        # look alone
        self._asked = self._asked or wanted < 0 or before != [self._spread, -self._spread]
        return int(value)

    def _look(self) -> None:
        """Do the ranks train one model? Weights are those after the last step. Collective."""
        self._asked = False
        if self._agreement is None:
            return
        own = [digest for _, digest in sorted(self._samples.items())]
        self._agreement.look(combined(own) if any(own) else None, self._steps)

    def _enter(self) -> None:
        """Forget the buckets, if they are not of the engine of today, or a join has ended since:
        others may have laid them out anew meanwhile, or a rank that had no data begins now. The
        next ballot lays them out.
        """
        engine = context.engine(self.options.process_set)
        if engine is self._engine and (engine.joins == self._joins or self._dirty):
            return
        # Between two passes of a step nothing was sent yet: after ``init()`` anew, the passes
        # before it count.
        passed = self._left if self._dirty and not self._closed and not self._next else None
        if engine is not self._engine:
            self._meet(engine)
        self._joins = engine.joins
        self._layout.take_apart(len(self.gradients))
        self._begin()
        if passed is not None:
            self._left, self._dirty = passed, True

    def _left_behind(self) -> bool:
        """Has ``init()`` been called anew between two passes?"""
        if self._engine is None or not self._engine.ended:
            return False
        return context.engine(self.options.process_set) is not self._engine

    def _meet(self, engine: Engine) -> None:
        self._engine, self._rounds, self._vote = engine, 0, None
        # to launch there costs no core
        on_device = any(gradient.device != "CPU" for gradient in self.gradients)
        settings = context.settings()
        self._overlap = spare_cores(settings, context.local_size()) or (
            on_device and settings.overlap != "off"
        )
        self._name = exchange_name(BUCKETS, self._number.name_on(engine))
        self.ballot = f"{self._name}.filled"
        self._word = np.zeros(_WORDS, dtype=np.int64)
        self._ballot = self._ballot_of(self.ballot)
        self._agreement = (
            Agreement(self._replica, engine, self._name) if self._replica is not None else None
        )
        self._layout.leave_engine()
        self._order = {}

    def _ballot_of(self, name: str) -> Sequence[Entry]:
        request = Request(name, Kind.ALLREDUCE, DType.INT64, (_WORDS,), ReduceOp.MIN)
        return (Entry(request, Buffer(self._word, self._word, DType.INT64)),)

    def _check_alike(self) -> None:
        identity = [gradient.identity for gradient in self.gradients]
        try:
            check_same_parameters(self.engine, self._name, identity, self.options.process_set)
        except ValueError:
            self._engine = None
            raise

    def _plan(self, order: Iterable[int], aside: Mapping[int, Any] | None = None) -> None:
        """Lay out the buckets. ``aside``: gradients that are in no parameter now. Collective."""
        recorded = self._order is None

        def current(index: int) -> Any:
            return self._current(index) if aside is None or index not in aside else aside[index]

        if self._layout.plan(
            self.engine, self._name, self.gradients, current, order, final=recorded
        ):
            self._order = None
        self._frozen.clear()
        self._reopen()
