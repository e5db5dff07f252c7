"""The weights of one optimizer, exchanged between its ranks as a strategy says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from farandole.base.contracts import Codec, Consolidating, Strategy
from farandole.base.digests import digest_of_text
from farandole.checks.exchange import all_equal, gathered
from farandole.checks.finding import error_of
from farandole.checks.strategy_mismatch import StrategyMismatchCheck, other_strategy
from farandole.core.engine import Engine
from farandole.core.ps.share import keys_of
from farandole.job import context
from farandole.job.report import pace
from farandole.strategies.codecs import claim, codec, keeper
from farandole.strategies.codecs.base import KEPT
from farandole.strategies.options import GradientOptions
from farandole.strategies.peers import EnginePeers

if TYPE_CHECKING:
    from farandole.base.types import Array

Item = TypeVar("Item")
Weight = TypeVar("Weight")
# from the last exchange, from a centre: what codecs keep is of one of them
CHANGE, DISTANCE = "change/", "distance/"


def slots_of(
    kinds: Sequence[str],
    weights: Sequence[Weight],
    copy: Callable[[Weight], Weight],
    zeros: Callable[[Weight], Weight],
) -> list[list[Weight]]:
    """Slots of these kinds (see ``contracts.Strategy``), as they begin with ``weights``. ``copy``,
    ``zeros``: how to make arrays of one.
    """
    return [
        [copy(weight) if kind == "weights" else zeros(weight) for weight in weights]
        for kind in kinds
    ]


class WeightExchange:
    """Exchanges of one optimizer's weights. ``label``: of whom, for messages.

    ``kinds``: the slots that it needs, see ``contracts.Strategy``. With a codec there is one more
    than the strategy's own where ranks have common weights: those after the last exchange.
    """

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self.strategy, self.codec = strategy, codec(options.codec)
        self.kinds = (
            (*strategy.slots, "weights")
            if self.codec is not None and self._keeps_last()
            else strategy.slots
        )
        self._label, self._options = label, options
        self._own: set[str] = set()  # how what the codec keeps of these weights is called, or was
        self._named = False
        self._counter = pace.counter()
        self._peers: tuple[Engine, EnginePeers] | None = None
        self._number = 0  # of this among the optimizers of the engine
        self._joins = 0  # of the engine, when the ranks' strategies were compared
        # what all have in common: the number of arrays, and a digest
        self._known: tuple[int, int] | None = None
        self._exchanged = False  # these weights

    def needed(self) -> bool:
        """Is there another rank?"""
        process_set = self._options.process_set
        needed = context.size() > 1 and process_set.included() and process_set.size() > 1
        if needed:
            context.skip_exchange_check()  # it may be long until the first exchange
        return needed

    @property
    def keeper(self) -> str:
        """What remembers exchanges elsewhere than in slots, for messages; empty: nothing does."""
        if isinstance(self.strategy, Consolidating):
            return f"strategy={self.strategy.spec!r}"
        return keeper(self.codec)

    @property
    def lasts(self) -> bool:
        """Does ``keeper`` not go with this, for it is the program's?"""
        return not isinstance(self.strategy, Consolidating) and self._options.owner is not None

    def slots(self, weights: Sequence[Array]) -> list[list[Array]]:
        """What is kept between exchanges, as it begins with these weights."""
        return slots_of(self.kinds, weights, np.copy, np.zeros_like)

    def stepped(self) -> None:
        """Count a step, for the status of the job."""
        self._counter.steps += 1

    def __call__(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Exchange now, in place. ``weights``: float32 or float64, contiguous; ``names``: theirs,
        for messages. ``statistics``: arrays that nobody trains, like those of BatchNorm; they are
        averaged. Collective, if the strategy's exchanges are; the first one always is.

        Raises ValueError on all ranks, naming the ranks, when they have other strategies or other
        weights.
        """
        peers = self._open()
        peers.names, peers.statistics, self._named = names, statistics, names is not None
        self._exchanged = True
        if self.codec is not None:
            self._claim(self.codec, peers.names_of(weights))
        # compressed where they are sent
        if self.codec is None or self.strategy.common in ("centre", "pairs"):
            self.strategy.exchange(weights, slots, peers, step)
        elif self.strategy.common == "neighbours":
            peers.sent = slots[-1]
            try:
                self.strategy.exchange(weights, slots[:-1], peers, step)
            finally:
                peers.sent = ()
        else:
            self._exchange_coded(weights, slots, peers, step)
        self._average(peers.statistics)  # those that did not go with the weights

    def _exchange_coded(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        peers: EnginePeers,
        step: int,
    ) -> None:
        """A rank that had joined, or that began with other weights, does not know what the others
        have in common: the weights travel whole then, or all take the mean of their slots first.
        """
        keeps = self._keeps_last()
        own, near = (slots[:-1], slots[-1]) if keeps else (slots, slots[0])
        if self._known is None or len(near) != self._known[0]:
            self._known = len(near), zlib.crc32(b"".join(array.tobytes() for array in near))
        known = self._known[1]
        alike = all_equal(peers.engine, f"{peers.name}.last", [known])[0]
        if not alike and not keeps:
            peers.average(near)
        peers.near = near if alike or not keeps else ()
        try:
            self.strategy.exchange(weights, own, peers, step)
        finally:
            peers.near = ()
        if keeps:
            for array, weight in zip(near, weights, strict=True):
                np.copyto(array, weight)
        else:
            self._forget_kept([DISTANCE])
        self._known = len(near), zlib.crc32(repr((known if alike else 0, step)).encode())

    def _claim(self, codec: Codec, names: Sequence[str]) -> None:
        """See ``claim``. Of distances from a centre nothing is kept from one exchange to the
        next.
        """
        if self.strategy.common == "centre":
            now = keys_of(names)
        else:
            now = [f"{self._scope()}{name}" for name in names]
        self._own = {*self._own, *now}
        if self._scope() != DISTANCE:
            claim(codec, self._options.owner, now)

    def forget_kept(self) -> None:
        """What a codec keeps was of other weights."""
        if self.codec is not None:
            self._forget_kept(self._own)

    def _forget_kept(self, own: Iterable[str]) -> None:
        """What a codec has left out of a distance, say, is still in that distance the next time.
        Other optimizers' stays.
        """
        assert self.codec is not None
        forgotten = {f"{kind}/{name}" for kind in KEPT for name in own}
        begins = tuple(name for name in forgotten if name.endswith("/"))  # of several
        state = self.codec.state_dict().items()
        self.codec.load_state_dict(
            {
                name: kept
                for name, kept in state
                if name not in forgotten and not name.startswith(begins)
            }
        )

    def _scope(self) -> str:
        return DISTANCE if self.strategy.common == "slot" else CHANGE

    def _keeps_last(self) -> bool:
        return self.strategy.common in ("weights", "neighbours")

    def average(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]] = (),
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """Give all ranks the same weights, in place: the mean of all, or what the strategy has in
        the place of it. ``slots``: none, if the strategy has not begun. Collective.
        """
        peers = self._open()
        if isinstance(self.strategy, Consolidating) and slots:
            # they would be those of the rank that is first
            if statistics and not self.any_of(self._exchanged):
                self._average(statistics)
            peers.names, peers.statistics = names, statistics
            self.strategy.consolidate(weights, slots, peers)
            self._average(peers.statistics)
        else:
            self._average([*weights, *statistics])
            copies = self.strategy.common == "neighbours" and self.codec is not None and slots
            if copies:  # the old ones would take ranks apart again
                for sent, weight in zip(slots[-1], weights, strict=True):
                    np.copyto(sent, weight)

    def any_of(self, true: bool) -> bool:
        """Is it true on some rank? Collective."""
        return self._open().any_of(true)

    def _average(self, arrays: Sequence[Array]) -> None:
        peers = self._open()
        peers.names = None
        if arrays:
            peers.average(arrays)

    def _open(self) -> EnginePeers:
        engine = context.engine(self._options.process_set)
        if self._peers is None or self._peers[0] is not engine:
            self._number = engine.numbers.next_optimizer()
            name = f"{self._label}.weights.{self._number}"
            self._check_alike(engine, name, self._number)
            self._peers = (
                engine,
                EnginePeers(engine, name, self._options, self.codec, self._spec(), self._scope()),
            )
        elif self._joins != engine.joins:  # a rank that had joined may be here for the first time
            self._check_alike(engine, self._peers[1].name, self._number)
        self._joins = engine.joins
        return self._peers[1]

    def begin_anew(self) -> None:
        """Weights and slots are others now: what the strategy keeps elsewhere begins anew with
        them. All ranks.
        """
        self._known, self._exchanged = None, False
        if self.codec is not None and self.strategy.common == "centre":
            self._forget_kept(self._own)
        if isinstance(self.strategy, Consolidating) and self._peers is not None:
            self._peers[1].close()
            self._peers = None

    def other_weights(self) -> None:
        """The next exchange is of others of the optimizer's weights, maybe of the same shapes. What
        a codec has not sent of one waits for its next exchange, if weights have names.
        """
        self._known, self._exchanged = None, False
        if self.codec is not None and self.strategy.common == "centre" and not self._named:
            self._forget_kept(self._own)
        if self._peers is not None:
            self._peers[1].other_weights()

    def _spec(self) -> str:
        return self.strategy.spec + (
            f" with the codec {self.codec.spec}" if self.codec is not None else ""
        )

    def _check_alike(self, engine: Engine, name: str, number: int) -> None:
        ranks = self._options.process_set.ranks or range(engine.size)
        spec = self._spec()
        with StrategyMismatchCheck(engine, number, ranks, self._label, spec):
            alike = all_equal(engine, f"{name}.strategy", [digest_of_text(spec)])[0]
        if alike is not False:
            return
        # empty: a rank that has joined
        specs = [text.decode() for text in gathered(engine, name, spec.encode())]
        odd = next(place for place, other in enumerate(specs) if other not in (spec, ""))
        found = other_strategy(self._label, ranks[engine.rank], spec, ranks[odd], specs[odd])
        raise error_of(ValueError, [found])


class StatefulExchange:
    """A ``WeightExchange`` that keeps the strategy's slots in host memory: where a framework has no
    place for them.

    Weights that are frozen take no part. Slots have a place for each of the optimizer's weights,
    ``None`` where it has not been trained, so that others may be trained from one step to the next.
    """

    def __init__(self, label: str, options: GradientOptions, strategy: Strategy) -> None:
        self.strategy, self.exchange = strategy, WeightExchange(label, options, strategy)
        self._slots: list[list[Array | None]] | None = None  # None: they have not begun
        self._places: list[int] | None = None  # of the weights that take part; None: all of them
        self._waiting: Sequence[int] = ()  # those that a checkpoint was waiting to exchange
        # the slots are a checkpoint's, and nobody has compared their shapes yet
        self._loaded = False
        self._total = 0  # weights of the optimizer
        self._exchanged = False  # after the last step
        self._last = -1  # step with an exchange

    @property
    def begun(self) -> bool:
        return self._slots is not None

    @property
    def count(self) -> int:
        """The number of weights for which something is kept; 0: nothing is."""
        return len(self._slots[0]) if self._slots else 0

    def begin(
        self,
        weights: Sequence[Weight],
        array_of: Callable[[Weight], Array],
        trained: Sequence[bool] | None = None,
        *,
        stepping: bool = False,
    ) -> None:
        """Begin what is not there: all slots, those of weights that are new (they stand behind the
        others) or trained for the first time, or those of a kind that a checkpoint did not have.

        ``weights``: all of the optimizer; ``trained``: which of them are not frozen (None: all).
        What is frozen later takes part until ranks have exchanged what they made of it.
        ``stepping``: a step comes.
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
        self._places, self._total = places, len(weights)
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
        """The optimizer's weights are others, or in another order: where each stood before (None:
        it is new).
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
        self._total = -1  # there is something to begin
        self.exchange.other_weights()

    def begin_others(self, weights: Sequence[Array]) -> None:
        """Begin the slots of weights that stand behind the others: before a step trains them for
        the first time.
        """
        fresh = self.exchange.slots(weights[self.count :]) if self.begun else ()
        for slot, others in zip(self._slots or (), fresh, strict=True):
            slot += others

    def chosen(self, items: Sequence[Item]) -> list[Item]:
        """Those of ``items``, of which there is one for each of the optimizer's weights, whose
        weights take part.
        """
        return list(items) if self._places is None else [items[place] for place in self._places]

    def at_end_of_epoch(self, step: int) -> bool:
        """Is there an exchange when an epoch ends after this step? Not another one, where the last
        step of all ranks had its own. Collective, if the strategy wants to hear of epochs: ranks
        need not take as many steps.
        """
        return self.strategy.epochs and self.exchange.any_of(step != self._last)

    def begin_anew(self) -> None:
        self._slots = self._places = None
        self._waiting, self._loaded = (), False
        self.exchange.begin_anew()

    def __call__(
        self,
        weights: Sequence[Array],
        step: int,
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """See ``WeightExchange``. ``weights``: those that take part."""
        assert self._slots is not None
        total = len(weights) if self._places is None else self._total
        if self._slots and len(self._slots[0]) != total:
            raise ValueError(
                f"strategy {self.strategy.spec!r} keeps something for {len(self._slots[0])}"
                f" weights, and the optimizer has {total}: load the state of a run with the same"
                " model"
            )
        self.exchange(weights, self._taking_part(weights, names), step, names, statistics)
        self._exchanged, self._last = True, step

    def average(
        self,
        weights: Sequence[Array],
        names: Sequence[str] | None = None,
        statistics: Sequence[Array] = (),
    ) -> None:
        """See ``WeightExchange.average``. ``weights``: those that take part."""
        # other ranks may have taken steps already
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
        """numpy would stretch one that has a size of 1 where the other has more, and say
        nothing.
        """
        for place, (kept, weight) in enumerate(zip(slot, weights, strict=False)):
            if kept.shape != weight.shape:
                raise ValueError(
                    f"the checkpoint's state of strategy {self.strategy.spec!r} is of another"
                    f" model: it has the shape {kept.shape} for"
                    f" {names[place] if names else f'weight {place}'!r}, which has {weight.shape}"
                    " here: load the state of a run with the same model, or leave it out, and the"
                    " strategy begins anew"
                )

    def state_dict(self) -> dict[str, Any]:
        """Copies of the slots (``None`` for weights that nobody has trained), of which strategy
        they are, and which weights the next exchange has, also if they are frozen before it.
        """
        return {
            "strategy": self.strategy.spec,
            "waiting": [] if self._exchanged else list(self._places or ()),
            "slots": [
                [None if array is None else array.copy() for array in slot]
                for slot in self._slots or ()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for the state of another strategy."""
        if state["strategy"] != self.strategy.spec:
            raise ValueError(
                f"the checkpoint is of strategy {state['strategy']!r}, and this optimizer has"
                f" {self.strategy.spec!r}: give it the same one, or load the checkpoint without"
                " what the strategy kept (in PyTorch state_dict.pop('farandole', None)), to begin"
                " anew"
            )
        self.exchange.begin_anew()
        slots = state["slots"][: len(self.exchange.kinds)]
        self._slots = [
            [None if array is None else array.copy() for array in slot] for slot in slots
        ] or None
        self._places, self._waiting, self._exchanged = None, state.get("waiting", ()), False
        self._loaded = True
