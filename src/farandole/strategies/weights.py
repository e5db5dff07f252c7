"""Exchanges of one optimizer's weights between its ranks, by a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from farandole.base.contracts import Consolidating, ExchangeContext, Strategy
from farandole.base.digests import digest_of_text
from farandole.checks.exchange import all_equal, gathered
from farandole.checks.finding import error_of
from farandole.checks.strategy_mismatch import StrategyMismatchCheck, other_strategy
from farandole.core.engine import Engine
from farandole.job import context
from farandole.job.report import training_progress
from farandole.strategies.codecs import codec, state_label
from farandole.strategies.inner_optimizer import (
    Inner,
    InnerOptimizer,
    check_fit,
    check_growth,
)
from farandole.strategies.options import GradientOptions
from farandole.strategies.peers import EnginePeers, PeerSession

if TYPE_CHECKING:
    from farandole.base.types import Array

Item = TypeVar("Item")
Weight = TypeVar("Weight")


def slots_of(
    kinds: Sequence[str],
    weights: Sequence[Weight],
    copy: Callable[[Weight], Weight],
    zeros: Callable[[Weight], Weight],
) -> list[list[Weight]]:
    """Return slots of these kinds (see ``contracts.Strategy``) for ``weights``. ``copy`` and
    ``zeros`` make the slot of one weight.
    """
    return [
        [copy(weight) if kind == "weights" else zeros(weight) for weight in weights]
        for kind in kinds
    ]


class WeightExchange:
    """Exchanges of one optimizer's weights.

    ``label``: the optimizer's label for messages. ``kinds``: the kinds of slots (see
    ``contracts.Strategy``) of the strategy and the encoding.
    """

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self.strategy = strategy
        self.codec = codec(options.codec)
        self._encoding = strategy.reference.encoding(self.codec, options.owner)
        self.kinds = (*strategy.slots, *self._encoding.slots)
        self._label = label
        self._options = options
        self._counter = training_progress.counter()
        self._session: PeerSession | None = None
        self._number = 0  # this exchange's number among the engine's optimizers
        self._joins = 0  # the engine's joins when the ranks' strategies were compared
        self._exchanged = False  # whether these weights have been exchanged
        self.inner: Inner | None = None  # the properties of the inner optimizer
        context.keep_each_rank(self)

    def describe(self, inner: InnerOptimizer | None) -> None:
        """Record the properties of the inner optimizer."""
        if inner is not None:
            self.inner = lambda: [inner]

    def needed(self) -> bool:
        """Return whether the process set has other ranks."""
        process_set = self._options.process_set
        needed = not context.stays_alone(process_set)
        if needed:
            context.skip_exchange_check()  # The first exchange may be late.
        return needed

    @property
    def state_label(self) -> str:
        """The label, for messages, of state outside slots; empty if there is none."""
        if isinstance(self.strategy, Consolidating):
            return f"strategy={self.strategy.spec!r}"
        return state_label(self.codec)

    @property
    def lasts(self) -> bool:
        """True if the state outside slots belongs to the program and outlives this exchange."""
        return not isinstance(self.strategy, Consolidating) and self._options.owner is not None

    def slots(self, weights: Sequence[Array]) -> list[list[Array]]:
        """Return the strategy's slots, initialized for these weights."""
        return slots_of(self.kinds, weights, np.copy, np.zeros_like)

    def stepped(self) -> None:
        """Count a step for the status of the job."""
        self._counter.steps += 1

    def __call__(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Exchange weights in place.

        - ``weights``: Contiguous float32 or float64 arrays.
        - ``names``: The weights' names, for messages.
        - ``statistics``: Untrained arrays to average, such as BatchNorm's.

        Collective if the strategy's exchanges are; the first exchange always is.

        Raises ValueError on all ranks, naming the ranks, if their strategies or weights differ.
        """
        session = self._open()
        if self.inner is not None and not self._exchanged:
            check_fit(self._label, self.inner(), self.codec, self.strategy)
        self._exchanged = True
        given = ExchangeContext(names, statistics)
        steps_outside = bool(getattr(self.strategy.reference, "reach", 0.0))
        before = _norm(weights) if steps_outside else 0.0
        travelled = self._encoding.exchange(self.strategy, weights, slots, step, given)
        if steps_outside and session.engine.rank == 0:
            check_growth(self._label, self.strategy, before, _norm(weights))
        if statistics and not travelled:
            session.mean(statistics)

    def forget_kept(self) -> None:
        """Drop the codec's state, which belongs to different weights."""
        self._encoding.forget()

    def average(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]] = (),
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Set the same weights on all ranks, in place: their mean, or the strategy's consolidated
        weights. ``slots``: empty if the strategy has not begun. Collective.
        """
        session = self._open()
        if isinstance(self.strategy, Consolidating) and slots:
            # Otherwise the statistics of the first rank would be used.
            if statistics and not self.any_of(self._exchanged):
                session.mean(statistics)
            peers = EnginePeers(session, ExchangeContext(names, statistics))
            own = slots[: len(self.strategy.slots)]
            self.strategy.consolidate(weights, own, peers)
            if statistics and not peers.statistics_travelled:
                session.mean(statistics)
            return
        self._encoding.average(weights, slots, statistics)

    def merge(self, arrays: Sequence[Array], steps: int) -> None:
        """Replace arrays by their mean over all ranks, each weighted by its ``steps``, in place.

        ``steps``: the rank's steps since its last exchange; 0 for a rank whose values do not count.
        If all ranks pass 0, nothing changes. Collective.
        """
        sums = [
            array * array.dtype.type(steps) if steps else np.zeros_like(array) for array in arrays
        ]
        total = np.array([float(steps)])
        self._open().mean([*sums, total])
        if total[0]:
            for array, mean in zip(arrays, sums, strict=True):
                np.divide(mean, total[0], out=array, casting="same_kind")

    def any_of(self, true: bool) -> bool:
        """Return whether ``true`` holds on some rank. Collective."""
        return self._open().mean.any_of(true)

    def _open(self) -> PeerSession:
        engine = context.engine(self._options.process_set)
        session = self._session
        if session is None or session.engine is not engine:
            self._number = engine.numbers.next_optimizer()
            name = f"{self._label}.weights.{self._number}"
            self._check_same_strategy(engine, name)
            session = PeerSession(
                engine, name, self._options, self._spec(), self._encoding.push_codec
            )
            self._encoding.bind(session)
            self._session = session
        elif self._joins != engine.joins:  # a rank that had joined may be here for the first time
            self._check_same_strategy(engine, session.name)
        self._joins = engine.joins
        return session

    def restart(self) -> None:
        """Reset the state outside slots: weights and slots have been replaced on all ranks."""
        self._exchanged = False
        self._encoding.reset()
        if isinstance(self.strategy, Consolidating) and self._session is not None:
            self._session.close()
            self._session = None

    def other_weights(self) -> None:
        """Expect different weights, perhaps of the same shapes, in the next exchange. A codec keeps
        the residual of a named weight for its next exchange.
        """
        self._exchanged = False
        self._encoding.other_weights()
        if self._session is not None:
            self._session.other_weights()

    def _spec(self) -> str:
        return self.strategy.spec + (
            f" with the codec {self.codec.spec}" if self.codec is not None else ""
        )

    def _check_same_strategy(self, engine: Engine, name: str) -> None:
        ranks = self._options.process_set.ranks or range(engine.size)
        spec = self._spec()
        with StrategyMismatchCheck(engine, self._number, ranks, self._label, spec):
            same = all_equal(engine, f"{name}.strategy", [digest_of_text(spec)])[0]
        if same is not False:
            return
        # empty for a joined rank
        specs = [text.decode() for text in gathered(engine, name, spec.encode())]
        odd = next(place for place, other in enumerate(specs) if other not in (spec, ""))
        found = other_strategy(self._label, ranks[engine.rank], spec, ranks[odd], specs[odd])
        raise error_of(ValueError, [found])


def _norm(weights: Sequence[Array]) -> float:
    """Return the Euclidean norm of all weights together."""
    return float(np.sqrt(sum(float(np.vdot(weight, weight)) for weight in weights)))


class StatefulExchange:
    """A ``WeightExchange`` that keeps the strategy's slots in host memory, for frameworks that
    cannot store them.

    Frozen weights take no part. Slots have an entry for each of the optimizer's weights, ``None``
    for an untrained weight, so that the set of trained weights may change between steps.
    """

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self.strategy = strategy
        self.exchange = WeightExchange(label, options, strategy)
        self._slots: list[list[Array | None]] | None = None  # None before the first slots
        self._places: list[int] | None = None  # indexes of the weights that take part; None: all
        # indexes of the weights in the next exchange, from a checkpoint
        self._waiting: Sequence[int] = ()
        # whether the slots come from a checkpoint and their shapes are still unchecked
        self._loaded = False
        self._total = 0  # number of the optimizer's weights
        self._exchanged = False  # after the last step
        self._last = -1  # the last step with an exchange

    @property
    def begun(self) -> bool:
        return self._slots is not None

    def merge(self, arrays: Sequence[Array], step: int) -> None:
        """Send the mean progress of the ranks that have trained to rank 0 of a new membership,
        weighted by their steps since the last exchange; other ranks receive its weights later.
        Collective.

        ``arrays``: all weights of the optimizer, then statistics, changed in place. ``step``: this
        rank's last step.
        """
        since = max(1, step - max(self._last, 0)) if context.commits() else 0
        first = next(iter(self._slots or ()), ())
        # A late rank may have an older anchor, so only its changes count, relative to rank 0's
        # anchor.
        anchored = [
            (array, anchor)
            for array, anchor in zip(arrays, first, strict=False)
            if anchor is not None and anchor.shape == array.shape
        ]
        for array, anchor in anchored:
            array -= anchor
        self.exchange.merge(arrays, since)
        for array, anchor in anchored:
            array += anchor

    @property
    def count(self) -> int:
        """The number of weights that have slots; 0 if the strategy keeps none."""
        return len(self._slots[0]) if self._slots else 0

    def begin(
        self,
        weights: Sequence[Weight],
        array_of: Callable[[Weight], Array],
        trained: Sequence[bool] | None = None,
        *,
        stepping: bool = False,
    ) -> None:
        """Begin the missing slots: all slots, the slots of new weights (at the end) or of newly
        trained weights, or a kind of slot that a checkpoint lacks.

        - ``weights``: All weights of the optimizer.
        - ``trained``: Whether each is not frozen (None: all). A weight frozen later takes part
          until its last changes have been exchanged.
        - ``stepping``: Whether a step follows.
        """
        now = [place for place in range(len(weights)) if trained is None or trained[place]]
        done, self._exchanged = stepping and self._exchanged, self._exchanged and not stepping
        before = self._waiting if self._places is None else self._places
        places = (
            now if done else sorted({*now, *(place for place in before if place < len(weights))})
        )
        kept, kinds = self._slots, len(self.exchange.kinds)
        if kept is not None and (places, len(weights), kinds) == (
            self._places,
            self._total,
            len(kept),
        ):
            return
        if self._places is not None and places != self._places:
            self.exchange.other_weights()
        self._places = places
        self._total = len(weights)
        self._slots = [[*slot, *[None] * (len(weights) - len(slot))] for slot in kept or ()]
        self._slots += [[None] * len(weights) for _ in range(kinds - len(self._slots))]
        lacking = [place for place in places if any(slot[place] is None for slot in self._slots)]
        fresh = (
            self.exchange.slots([array_of(weights[place]) for place in lacking]) if lacking else ()
        )
        for slot, begun in zip(self._slots, fresh, strict=bool(lacking)):
            for place, array in zip(lacking, begun, strict=True):
                slot[place] = array if slot[place] is None else slot[place]

    def moved(self, places: Sequence[int | None]) -> None:
        """Adapt to a change of the optimizer's weights. ``places``: the previous index of each
        weight, None if it is new.
        """
        now = {before: place for place, before in enumerate(places) if before is not None}
        if self._slots is not None:
            self._slots = [
                [
                    None if before is None or before >= len(slot) else slot[before]
                    for before in places
                ]
                for slot in self._slots
            ]
        if self._places is not None:
            self._places = sorted(now[before] for before in self._places if before in now)
        self._waiting = sorted(now[before] for before in self._waiting if before in now)
        self._total = -1  # forces ``begin``
        self.exchange.other_weights()

    def begin_others(self, weights: Sequence[Array]) -> None:
        """Begin the slots of new weights at the end, before the first step that trains them."""
        fresh = self.exchange.slots(weights[self.count :]) if self.begun else ()
        for slot, others in zip(self._slots or (), fresh, strict=True):
            slot += others

    def chosen(self, items: Sequence[Item]) -> list[Item]:
        """Return the ``items`` (one per weight of the optimizer) whose weights take part."""
        return list(items) if self._places is None else [items[place] for place in self._places]

    def at_end_of_epoch(self, step: int) -> bool:
        """Return whether to exchange weights at the end of an epoch, after this step: not if all
        ranks exchanged in their last step. Collective if the strategy exchanges at the end of
        epochs, because ranks may take different numbers of steps.
        """
        return self.strategy.epochs and self.exchange.any_of(step != self._last)

    def restart(self) -> None:
        self._slots = self._places = None
        self._waiting = ()
        self._loaded = False
        self.exchange.restart()

    def __call__(
        self,
        weights: Sequence[Array],
        step: int,
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Exchange weights as ``WeightExchange`` does. ``weights``: the participating weights.
        Raises ValueError if the slots belong to a different number of weights.
        """
        assert self._slots is not None
        total = len(weights) if self._places is None else self._total
        if self._slots and len(self._slots[0]) != total:
            raise ValueError(
                f"the state of strategy {self.strategy.spec!r} has {len(self._slots[0])} weights,"
                f" but the optimizer has {total}. Load the state of a run with the same model"
            )
        self.exchange(weights, self._taking_part(weights, names), step, names, statistics)
        self._exchanged = True
        self._last = step

    def average(
        self,
        weights: Sequence[Array],
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Average as ``WeightExchange.average`` does. ``weights``: the participating weights."""
        # Other ranks may have taken steps already.
        if isinstance(self.strategy, Consolidating) and not self.begun:
            self.begin(weights, lambda weight: weight)
        self.exchange.average(weights, self._taking_part(weights, names), names, statistics)

    def _taking_part(
        self, weights: Sequence[Array], names: Sequence[str] | None
    ) -> list[list[Array]]:
        slots = [
            [array for array in self.chosen(slot) if array is not None]
            for slot in self._slots or ()
        ]
        if self._loaded:
            for slot in slots:
                self._check_shapes(slot, weights, names)
            self._loaded = False
        return slots

    def _check_shapes(
        self, slot: Sequence[Array], weights: Sequence[Array], names: Sequence[str] | None
    ) -> None:
        """Raise ValueError if a slot of a checkpoint does not have the shape of its weight: numpy
        would silently broadcast a size of 1.
        """
        for place, (kept, weight) in enumerate(zip(slot, weights, strict=False)):
            if kept.shape != weight.shape:
                raise ValueError(
                    f"the checkpoint's state of strategy {self.strategy.spec!r} belongs to a"
                    f" different model: {names[place] if names else f'weight {place}'!r} has shape"
                    f" {kept.shape} in the checkpoint and {weight.shape} in this model. Load the"
                    " state of a run with the same model, or remove the state to restart the"
                    " strategy"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the slots (``None`` for untrained weights), the strategy's spec, the
        last step with an exchange, and the indexes of the weights in the next exchange, including
        weights frozen before it.
        """
        return {
            "strategy": self.strategy.spec,
            "last": self._last,
            "waiting": [] if self._exchanged else list(self._places or ()),
            "slots": [
                [None if array is None else array.copy() for array in slot]
                for slot in self._slots or ()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raises ValueError for the state of a different strategy."""
        if state["strategy"] != self.strategy.spec:
            raise ValueError(
                f"the checkpoint was written with strategy {state['strategy']!r}, but this"
                f" optimizer has {self.strategy.spec!r}. Use the same strategy, or remove its"
                " state from the checkpoint (in PyTorch state_dict.pop('farandole', None)) to"
                " restart the strategy"
            )
        self.exchange.restart()
        slots = state["slots"][: len(self.exchange.kinds)]
        self._slots = [
            [None if array is None else array.copy() for array in slot] for slot in slots
        ] or None
        self._places = None
        self._waiting = state.get("waiting", ())
        self._last = state.get("last", -1)
        self._exchanged = False
        self._loaded = True
