"""Reduction of gradients in buckets while backward runs.

After every step, all ranks have the same gradients. A *round* reduces all buckets once. A bucket is
launched as soon as its gradients are ready and its predecessor is launched, so the order is the
same on all ranks. Without a spare core, buckets are launched when backward ends.

When backward ends, the ranks announce how many buckets are complete (``ballot``). A bucket that
some rank could not complete (a parameter without a gradient) is filled with zeros, and all ranks
wait: gradients are final when ``backward()`` returns. A later gradient (from a second loss) is
reduced in a further round; averaging an average again does not change it.

The first step records the order in which gradients arrive, and the final layout of the buckets
follows it (``bucket_layout``). Sparse gradients are sent as rows, outside buckets, at the end of
each round. ``gradient_step`` does the bookkeeping; ``step_sync`` waits for ranks that used
different optimizers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farandole.base.exchange_names import BUCKETS, exchange_name
from farandole.base.types import ReduceOp
from farandole.checks.agreement import Replica
from farandole.checks.consistency import check_same_parameters
from farandole.checks.gradient_checks import GradientChecks
from farandole.core.engine import Engine
from farandole.job import context
from farandole.job.config.settings import spare_cores
from farandole.strategies import step_sync
from farandole.strategies.ballot import NO_WORD, UNOPENED, UNPLANNED, Ballot, Tally
from farandole.strategies.bucket_layout import BucketLayout
from farandole.strategies.buckets import Gradient
from farandole.strategies.codec_context import CodecContext
from farandole.strategies.codecs import Releasable, claim, codec
from farandole.strategies.further_rounds import ReducedParts
from farandole.strategies.gradient_step import GradientStep, Unexpected
from farandole.strategies.optimizer_id import OptimizerId
from farandole.strategies.optimizer_session import OptimizerSession
from farandole.strategies.options import DROPPED, TAKEN, TOO_MANY, GradientOptions


class BucketReducer:
    """Reduces gradients that arrive one by one. ``flat=False`` leaves gradients in their own
    memory, as codecs and GPUs need. ``nonfinite``: the index of a gradient of this rank that was
    not finite in the latest round, or None. ``backward``: the number of the latest backward pass
    that computed gradients of this optimizer.
    """

    def __init__(
        self,
        gradients: Sequence[Gradient],
        options: GradientOptions,
        *,
        flat: bool = True,
        replica: Replica | None = None,
    ) -> None:
        """``options.groups``: the number of groups, or lists of indexes into ``gradients``."""
        self.gradients = list(gradients)
        self.codec = codec(options.codec)
        self.codec_context = CodecContext(self.codec, "DistributedOptimizer")
        self.options = options
        self.lock = threading.RLock()  # hooks may run in one thread per device
        self.backward = -1
        self.nonfinite: int | None = None
        self._passes = options.passes
        self._id = OptimizerId(options.process_set)
        self._session: OptimizerSession | None = None
        self._layout = BucketLayout(options, self.codec, flat=flat and self.codec is None)
        self._checks = GradientChecks(replica)
        self._reduced = ReducedParts(options)
        self._begin()
        self.engine.participants.add(self)

    @property
    def engine(self) -> Engine:
        """The current engine of the process set."""
        return self._id.engine

    # Calls by the framework.

    def ready(self, index: int, gradient: Any) -> None:
        """Count a backward pass that has added to gradient ``index``."""
        with self.lock:
            if not self._step.new_gradients or self._engine_replaced():
                claim(self.codec, self.options.owner, [one.identity[0] for one in self.gradients])
                self._enter()
                self._skip_frozen()
            step = self._step
            if step.announced_none or not step.passes_left[index]:
                self._refuse_or_start_over(index, gradient)
                step = self._step
            if not step.count_pass(index):
                return
            home = self._layout.home[index]
            if home is not None and self.gradients[index].is_sparse(gradient):
                step.misplaced = True
                gradient = None
            if step.reduced or index in step.frozen:  # requires a further round
                return
            session = self._session
            assert session is not None
            if session.arrivals is not None:
                session.arrivals[index] = None  # once: some programs never call ``step``
            if self._checks.sampling and gradient is not None:
                self._checks.on_gradient(index, self.gradients[index].digest(gradient))
            if home is None:
                return
            number, slot = home
            self._layout.buckets[number].put(slot, gradient)
            # ready, or missing because it cannot be sent in this round
            if step.put(index, number, sent=True) and session.overlap:
                self._launch()

    def end_of_backward(self) -> None:
        """Make gradients final if the finished backward pass was the step's last pass for any of
        them. This includes gradients of other optimizers in the same pass.
        """
        if self.due:
            others = [
                one
                for engine in context.engines()
                for one in tuple(engine.participants)
                if one is not self and one.due and one.backward == self.backward
            ]
            step_sync.synchronize([self, *others])

    def before_step(self) -> None:
        """Make all gradients final, including those that were never computed."""
        self._enter()
        while not self._step.complete:
            step_sync.synchronize([self])
        self._begin()

    def after_step(self) -> None:
        """Lay out the buckets again after the first step, in the order in which gradients
        arrived.
        """
        self._checks.after_step()
        if not self._step.new_gradients and self._session is not None:
            arrivals = self._session.arrivals
            if arrivals is not None and self._session.rounds:
                self._session.arrivals = None
                self._plan(arrivals)
            elif arrivals is None and self._layout.outdated():
                self._plan(self._layout.order)
        # The program stepped without ``before_step``.
        if self._step.reduced and not self._step.new_gradients:
            self._begin()

    def anything_new(self) -> bool:
        """Return whether any rank has computed gradients since the last ``before_step``.
        Collective.
        """
        self._enter()
        assert self._session is not None
        tally = self._session.poll(self._ballot(0 if self._step.new_gradients else 1))
        self._take_spread(tally)
        self._layout.wished = tally.bucket_bytes
        self._step.on_tally(new_gradients=tally.new_gradients)
        return tally.ready_buckets == 0

    def check_droppable(self) -> None:
        """Raise AssertionError if gradients may not be dropped now. Otherwise expect new ones."""
        if self._step.new_gradients:
            raise AssertionError(DROPPED)
        if self._step.announced_none:
            raise AssertionError(TAKEN)
        if self._step.reduced:
            self._begin()

    def start_over(self) -> None:
        """Expect the gradients of a new step, because the program returns to an earlier state.
        Buckets in flight (if backward raised) stay in flight, because other ranks may wait for
        them.
        """
        with self.lock:
            engine = self._engine()
            ended = engine is not None and engine.ended
            if self._step.reduced or not self._step.launched or ended:
                self._begin()

    def update_codec(self) -> None:
        """Update the codec with the optimizer's loss scale and momentum."""
        known = id(self.gradients), len(self.gradients)
        self.codec_context.update(known, lambda: [one.identity[0] for one in self.gradients])

    def set_passes(self, passes: int) -> None:
        """Expect ``passes`` backward passes per step from now on."""
        self._passes = passes
        self._begin()

    def extend(self, gradients: Sequence[Gradient]) -> None:
        """Add parameters. They enter the layout when their first gradient arrives."""
        self._layout.extend(len(self.gradients), len(gradients))
        self.gradients += gradients
        self._step.extend(len(gradients))

    def clear(self) -> None:
        """Drop all parameters; ``extend`` adds their successors."""
        # A reduced sum will be summed once more, so divide it by the number of ranks.
        if self._step.reduced and self.options.op is ReduceOp.SUM:
            for index, gradient in enumerate(self.gradients):
                brought = self._step.sent[index] or index in self._layout.sparse
                if brought and self._current(index) is not None:
                    gradient.amplify(1 / self.engine.size, None)
        self.gradients = []
        self._abandon_session()
        self._layout.clear()
        self._begin()

    # The step's ``Inventory``.

    @property
    def all_ready(self) -> int:
        return self._layout.all_ready()

    @property
    def laid_out(self) -> bool:
        return self._layout.common

    @property
    def sparse(self) -> Sequence[int]:
        return self._layout.sparse

    def has_stray(self, frozen: Iterable[int]) -> bool:
        return any(
            self.gradients[index].current() is not None
            for index in (*self._layout.outside, *frozen)
        )

    def has_rows(self, index: int) -> bool:
        if self._layout.home[index] is None:
            return False
        gradient = self._current(index)
        return gradient is not None and self.gradients[index].is_sparse(gradient)

    def has_gradient(self) -> bool:
        return any(gradient.current() is not None for gradient in self.gradients)

    def trainable(self, index: int) -> bool:
        return self.gradients[index].trainable()

    # The optimizer as a ``Participant`` of a step's synchronization.

    @property
    def due(self) -> bool:
        """True while gradients after their last pass wait to be reduced."""
        return self._step.due

    @property
    def ballot_name(self) -> str:
        """The name of the collective in which ranks announce their gradients."""
        assert self._session is not None
        return self._session.ballot_name

    @property
    def process_set_id(self) -> int:
        return self.options.process_set.process_set_id or 0

    def can_announce_none(self) -> bool:
        """Prepare to announce that this rank has no gradients. Return False if the announcement
        would be wrong, or if another thread is using this optimizer.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._enter()
            return self._step.can_announce_none(self)
        finally:
            self.lock.release()

    def announce(
        self, on_done: Callable[[], None] | None = None, *, none_here: bool = False
    ) -> None:
        """Send this rank's ballot and return immediately.

        ``on_done`` is called, on any thread, when all ranks have sent their ballots. ``none_here``:
        this rank has computed no gradients, but may still do so.
        """
        assert self._session is not None
        ready = self._step.announce(self, none_here=none_here)
        self._session.send(self._ballot(ready), on_done)

    def settle(self) -> None:
        """Reduce all gradients of all ranks. The step is complete if no rank can have more.
        Collective.
        """
        assert self._session is not None
        try:
            tally = self._session.receive()
            self._take_spread(tally)
            self._layout.wished = tally.bucket_bytes
            self._step.on_tally(new_gradients=tally.new_gradients)
            self._reduce(tally.ready_buckets)
            self._checks.compare_if_wanted()
        except Exception:
            self._begin()  # The engine survives an error, and so does the reducer.
            raise

    def _take_spread(self, tally: Tally) -> None:
        """Agree on the spread of the ballots. Joined ranks know only an older spread, so they take
        part, too; otherwise only some ranks would compare replicas.
        """
        wanted = tally.compare_replicas or not tally.spread_was_known
        self._checks.on_agreed(tally.spread, wanted=wanted)

    # The step.

    def _begin(self) -> None:
        """Begin a step."""
        self._step = GradientStep(len(self.gradients), self._passes, self._layout.sizes())
        self._reduced.clear()
        self._checks.begin_step()
        for bucket in self._layout.buckets:
            bucket.open()

    def _reopen(self) -> None:
        """Begin a further round of the step."""
        self._step.reopen(self._layout.sizes())
        for bucket in self._layout.buckets:
            bucket.open()

    def _refuse_or_start_over(self, index: int, gradient: Any) -> None:
        """Raise AssertionError for an unexpected gradient, or begin the step that it belongs to."""
        known = self.gradients[index].holds(gradient)
        problem = self._step.unexpected(index, known=known)
        if problem is Unexpected.TAKEN:
            raise AssertionError(TAKEN)
        if problem is Unexpected.TOO_MANY:
            name = self.gradients[index].identity[0]
            raise AssertionError(TOO_MANY.format(name=name, passes=self._passes + 1))
        if problem is Unexpected.STEP_SKIPPED:
            self._begin()

    def _skip_frozen(self) -> None:
        """Fill the slots of frozen parameters with zeros."""
        step = self._step
        if step.reduced:
            return
        for index, home in enumerate(self._layout.home):
            if home is not None and not step.sent[index] and not self.trainable(index):
                step.frozen.add(index)
                self._layout.buckets[home.bucket].put(home.slot, None)
                step.put(index, home.bucket, sent=False)

    def _launch(self, *, again: bool = False, soon: bool = False) -> None:
        """Launch the complete buckets that have no incomplete predecessor."""
        step = self._step
        while (number := step.next_full()) is not None:
            if not number:
                self.update_codec()
                self.nonfinite = None
            if not again and self.nonfinite is None and self._checks.active:
                self._find_nonfinite(number)
            assert self._session is not None
            again_with = self._reduced.options if again else None
            self._layout.buckets[number].launch(self._session.engine, again_with, soon=soon)
            step.launched += 1

    def _find_nonfinite(self, number: int) -> None:
        slot = self._layout.buckets[number].first_nonfinite()
        if slot is not None:
            self.nonfinite = self._layout.members[number][slot]

    # The end of a round.

    def _reduce(self, agreed: int) -> None:
        """Reduce the buckets if there are new gradients. ``agreed``: the number of buckets that are
        ready on all ranks, or UNOPENED or UNPLANNED.
        """
        session, step = self._session, self._step
        assert session is not None
        step.due = False
        if agreed == UNOPENED:
            self._check_same_parameters()
            self._plan(session.arrivals or self._layout.order)
            self._layout.common = True
        all_ready = self._layout.all_ready()
        if not step.has_to_reduce(agreed, all_ready):
            return
        again = step.reduced
        self._reduced.count(self.engine, self.options)
        if again:
            self._reopen()
        if agreed == UNPLANNED:
            rows = self._set_aside()
            self._fill(again=again)
            self._finish()
            self._plan_with(rows)
            self._fill(again=True)
        else:
            self._fill(again=again)
        self._finish()
        self._reduce_sparse(again=again)
        session.rounds += 1
        step.finish(agreed, all_ready)

    def _fill(self, *, again: bool) -> None:
        """Fill the empty slots and launch the remaining buckets."""
        step = self._step
        if again and self._reduced.factor != 1:
            self._amplify_new()
        for index, home in enumerate(self._layout.home):
            if home is not None and step.lacks(index, again=again):
                bucket = self._layout.buckets[home.bucket]
                if again and self._first_by_codec(index):
                    bucket.fresh.add(home.slot)
                gradient = self._current(index)
                if gradient is not None and self.gradients[index].is_sparse(gradient):
                    gradient = None
                bucket.put(home.slot, gradient)
                step.put(index, home.bucket, sent=gradient is not None)
        self._launch(again=again, soon=True)

    def _finish(self) -> None:
        """Wait for the buckets."""
        step = self._step
        for bucket, indexes in zip(self._layout.buckets, self._layout.members, strict=True):
            step.arrived(indexes, bucket.finish())
        if self._reduced.needed:
            self._reduced.keep_only(self._layout.sparse)
            growing = (index for index in step.unfinished() if step.sent[index])
            self._reduced.keep(growing, self.gradients)

    def _first_by_codec(self, index: int) -> bool:
        """Return whether a parameter's first gradient arrives in a further round and uses the
        codec.
        """
        return self.codec is not None and not self._step.sent[index]

    def _amplify_new(self) -> None:
        """Amplify the new parts of gradients for a further round."""
        for index, home in enumerate(self._layout.home):
            gradient = self.gradients[index]
            grown = index in self._reduced or not self._step.sent[index]
            if home is not None and grown and not self._first_by_codec(index):
                current = self._current(index)
                if current is not None and not gradient.is_sparse(current):
                    self._reduced.amplify_new(index, gradient)

    def _current(self, index: int) -> Any:
        """Return the gradient if it belongs to this step, even if its parameter was frozen
        since.
        """
        return self.gradients[index].current(frozen=self._step.belongs(index))

    # Sparse gradients.

    def _set_aside(self) -> dict[int, Any]:
        """Take this rank's sparse gradients that have slots in buckets. Where other ranks have
        dense gradients, their mean fills the slot.
        """
        return {
            index: self.gradients[index].take()
            for index in range(len(self.gradients))
            if self.has_rows(index)
        }

    def _plan_with(self, rows: Mapping[int, Any]) -> None:
        """Lay out the buckets again for gradients without a place, and add ``rows`` to the reduced
        gradients. Collective.
        """
        self._check_same_parameters()  # There may be new parameters.
        assert self._session is not None
        before = set(self._layout.sparse)
        self._plan(self._session.arrivals or self._layout.order, rows)
        if self._reduced.needed:
            new = (index for index in self._layout.sparse if index not in before)
            sent = self._step.sent
            self._reduced.keep((index for index in new if sent[index]), self.gradients)
        for index, gradient in rows.items():
            self.gradients[index].add(gradient)

    def _reduce_sparse(self, *, again: bool) -> None:
        """Reduce the sparse gradients.

        As in buckets, new parts are amplified in a further round. The dense parts of gradients
        with a slot in this round's buckets are reduced already.
        """
        growing = self._reduced.needed
        if self._layout.sparse:
            self._add_unsent()
        assert self._session is not None
        for index in self._layout.sparse:
            gradient, once_more = self.gradients[index], again or self._step.sent[index]
            if once_more and growing and gradient.current() is not None:
                self._reduced.amplify_new(index, gradient)
            options = self._reduced.options if once_more else self.options
            gradient.reduce_sparse(f"{self._session.name}.sparse.{index}", options)
            if growing and gradient.current() is not None:
                self._reduced.keep([index], self.gradients)

    def _add_unsent(self) -> None:
        """Add the codec's residuals to gradients that have become sparse and will no longer use the
        codec.
        """
        if not isinstance(self.codec, Releasable):
            return
        self.update_codec()
        for index in self._layout.sparse:
            gradient = self.gradients[index]
            unsent = self.codec.release(gradient.identity[0]) if gradient.trainable() else None
            # A residual from a checkpoint may belong to a different model.
            if unsent is not None and len(unsent) == gradient.count:
                gradient.add_flat(unsent)

    # Agreement.

    def _ballot(self, ready: int) -> Ballot:
        return Ballot(
            ready_buckets=ready,
            bucket_bytes=self.engine.sizes.bucket_bytes if self.engine.rank == 0 else NO_WORD,
            # ``due`` counts exchanges, not layouts
            compare_replicas=self._layout.common and self._checks.due(),
            steps=self._checks.steps,
            spread=self._checks.spread,
            new_gradients=self._step.new_gradients,
        )

    def _engine(self) -> Engine | None:
        """Return the engine for which the buckets were laid out, or None."""
        session = self._session
        return None if session is None or session.abandoned else session.engine

    def _enter(self) -> None:
        """Drop the layout if the engine has changed or a join has ended since: other ranks may have
        a new layout, or a rank without data may begin now. The next ballot causes a new layout.
        """
        engine, session = context.engine(self.options.process_set), self._session
        same = engine is self._engine()
        if same and session is not None:
            if engine.joins == session.joins or self._step.new_gradients:
                return
            session.joins = engine.joins
        # Between two passes of a step, nothing has been sent. Passes before another ``init()``
        # still count.
        passes_left = self._step.unsent_passes()
        if not same:
            self._open_session(engine)
        self._layout.take_apart(len(self.gradients))
        self._begin()
        if passes_left is not None:
            self._step.resume(passes_left)

    def _engine_replaced(self) -> bool:
        """Return whether ``init()`` was called again between two passes."""
        session = self._session
        if session is None or session.abandoned or not session.engine.ended:
            return False
        return context.engine(self.options.process_set) is not session.engine

    def _open_session(self, engine: Engine) -> None:
        # Launching on a device uses no core.
        on_device = any(gradient.device != "CPU" for gradient in self.gradients)
        settings = context.settings()
        name = exchange_name(BUCKETS, self._id.name_on(engine))
        overlap = spare_cores(settings, context.local_size())
        overlap = overlap or (on_device and settings.overlap != "off")
        self._session = OptimizerSession(engine, name, overlap=overlap)
        self._checks.begin(engine, name)
        self._layout.leave_engine()

    def _abandon_session(self) -> None:
        """Begin a new session with the next gradient or step."""
        if self._session is not None:
            self._session.abandoned = True

    def _check_same_parameters(self) -> None:
        assert self._session is not None
        identity = [gradient.identity for gradient in self.gradients]
        try:
            check_same_parameters(
                self.engine, self._session.name, identity, self.options.process_set
            )
        except ValueError:
            self._abandon_session()
            raise

    def _plan(self, order: Iterable[int], aside: Mapping[int, Any] | None = None) -> None:
        """Lay out the buckets. ``aside``: gradients removed from their parameters. Collective."""
        session = self._session
        assert session is not None

        def current(index: int) -> Any:
            return self._current(index) if aside is None or index not in aside else aside[index]

        final = session.arrivals is None
        layout = self._layout
        if layout.plan(self.engine, session.name, self.gradients, current, order, final=final):
            session.arrivals = None
        self._step.frozen.clear()
        self._reopen()
