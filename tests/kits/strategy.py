"""Conformance kit of strategies that exchange weights. A new strategy runs it in three lines:

    class TestMine(StrategyKit):
        def strategy(self):
            return Mine()

Ranks are processes of a job with a store, as parameter servers and gossip need. The kit checks what
all strategies have in common; a strategy's tests compare its results with a model.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Consolidating, Strategy
from farandole.errors import HorovodInternalError
from farandole.strategies.options import GradientOptions
from farandole.strategies.references import FirstSlotReference
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import StatefulExchange, WeightExchange
from tests.kits.messages import mentioning
from tests.run_job import job

SHAPES = ((3, 4), (), (0,), (7,), (2, 1, 5))
DTYPES = ("float32", "float64")
STEPS = 9

Arrays = list[Any]


def beginning(dtype: str, kind: int = 0) -> Arrays:
    """Return the first weights, equal on all ranks."""
    random = np.random.default_rng(kind)
    return [np.asarray(random.standard_normal(shape), dtype) for shape in SHAPES]


def learn(rank: int, step: int, weights: Arrays, goal: float = 1.0) -> None:
    """Take a local training step in place, towards a goal that differs between ranks."""
    random = np.random.default_rng([rank, step])
    for weight in weights:
        weight -= np.asarray(
            0.1 * (weight - goal - 0.1 * rank) + 0.01 * random.standard_normal(weight.shape),
            weight.dtype,
        )


def same(one: Arrays, other: Arrays) -> bool:
    """Return whether all bits are equal."""
    return [array.tobytes() for array in one] == [array.tobytes() for array in other]


class StrategyKit:
    repeats = True  # equal steps in equal order give equal bits
    resumes = True  # all state between exchanges is in slots
    waits = True  # ranks exchange at the same time
    joins = True  # the others continue without a rank that has joined
    codec = ""

    def strategy(self) -> Strategy:
        raise NotImplementedError

    def run(self, size: int, body: Callable[[int, Strategy, GradientOptions], Any]) -> list[Any]:
        strategy, codec = self.strategy(), self.codec
        return job(
            size, lambda rank: body(rank, strategy, GradientOptions(codec=codec)), store=True
        )

    def test_the_attributes_of_a_strategy(self) -> None:
        one, other = self.strategy(), self.strategy()
        assert strategy_of(one) is one, "it has all attributes of a strategy"
        assert one.spec == other.spec
        assert isinstance(one.epochs, bool)
        assert set(one.slots) <= {"weights", "zeros"}
        first_slot = isinstance(one.reference, FirstSlotReference)
        assert not first_slot or one.slots, "what all have in common is its first slot"
        assert pickle.loads(pickle.dumps(one)).spec == one.spec, "it travels to ranks"

    def test_it_is_due_after_numbers_that_a_framework_traces(self) -> None:
        """JAX and TensorFlow know ``step`` only when the program runs; an array stands for such a
        number.
        """
        strategy, steps = self.strategy(), np.arange(1, 65)
        alone = [bool(strategy.due(int(step))) for step in steps]
        assert np.broadcast_to(strategy.due(steps), steps.shape).astype(bool).tolist() == alone
        assert any(alone) or strategy.epochs

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_weights_keep_their_memory_shape_and_dtype(self, dtype: str) -> None:
        def body(rank: int, strategy: Strategy, options: GradientOptions) -> Arrays:
            weights = beginning(dtype)
            exchange = WeightExchange("kit", options, strategy)
            slots = exchange.slots(weights)
            kept = [array for arrays in (weights, *slots) for array in arrays]
            before = [(id(array), array.shape, array.dtype, array.ctypes.data) for array in kept]
            for step in range(1, STEPS + 1):
                learn(rank, step, weights)
                if strategy.due(step):
                    exchange(weights, slots, step)
            exchange.average(weights, slots)
            assert before == [
                (id(array), array.shape, array.dtype, array.ctypes.data) for array in kept
            ]
            assert all(np.isfinite(array).all() for array in kept)
            return weights

        for size in (1, 2, 3):
            ends = self.run(size, body)
            assert all(same(end, ends[0]) for end in ends), (
                "after average() all ranks have the same bits"
            )

    def test_unchanged_weights_stay(self) -> None:
        def body(rank: int, strategy: Strategy, options: GradientOptions) -> None:
            weights = beginning("float64")
            exchange = WeightExchange("kit", options, strategy)
            slots = exchange.slots(weights)
            for step in range(1, STEPS + 1):
                if strategy.due(step):
                    exchange(weights, slots, step)
            exchange.average(weights, slots)
            for weight, first in zip(weights, beginning("float64"), strict=True):
                np.testing.assert_allclose(weight, first, rtol=1e-12, atol=1e-12)

        self.run(3, body)

    def test_exchanges_bring_ranks_closer_together(self) -> None:
        """Ranks have different goals: without exchanges, neighbours would end 0.1 apart."""

        def body(rank: int, strategy: Strategy, options: GradientOptions) -> tuple[float, float]:
            weights = [np.zeros(3)]
            exchange = WeightExchange("kit", options, strategy)
            slots = exchange.slots(weights)
            for step in range(1, 121):
                weights[0] -= 0.05 * (weights[0] - 1.0 - 0.1 * rank)
                if strategy.due(step):
                    exchange(weights, slots, step)
            own = float(weights[0][0])
            exchange.average(weights, slots)
            return own, float(weights[0][0])

        found = self.run(3, body)
        # a rank that comes last, when the others are done, has the last word
        bound = 0.12 if self.waits else 0.3
        assert all(abs(end - 1.1) < bound for _, end in found), found
        if self.waits and not self.strategy().epochs:  # others are at different steps
            assert np.ptp([own for own, _ in found]) < 0.1, found

    def test_one_strategy_serves_several_optimizers(self) -> None:
        if not self.repeats:
            pytest.skip("does not apply: its results depend on the order of events")

        def body(rank: int, strategy: Strategy, options: GradientOptions) -> list[Arrays]:
            import farandole.numpy as hvd

            def trained(count: int) -> list[Arrays]:
                """Return the weights of ``count`` optimizers that take turns; ranks take turns,
                too, if they can.
                """
                models = [beginning("float64", kind) for kind in range(count)]
                exchanges = [WeightExchange("kit", options, strategy) for _ in models]
                slots = [
                    exchange.slots(weights)
                    for exchange, weights in zip(exchanges, models, strict=True)
                ]
                for exchange in exchanges:
                    exchange.average([np.zeros(1)])  # all ranks have found their strategies equal
                for step in range(1, STEPS + 1):
                    for turn in range(1 if self.waits else hvd.size()):
                        if self.waits or turn == rank:
                            for weights, exchange, kept in zip(
                                models, exchanges, slots, strict=True
                            ):
                                learn(rank, step, weights)
                                if strategy.due(step):
                                    exchange(weights, kept, step)
                        hvd.barrier()
                return models

            return [*trained(2), *trained(1)]

        for first, _, alone in self.run(2, body):
            for one, two in zip(first, alone, strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)

    def test_a_run_continues_where_its_checkpoint_was_made(self) -> None:
        if not (self.repeats and self.resumes):
            pytest.skip("does not apply: its state between exchanges is not in slots alone")

        def body(rank: int, strategy: Strategy, options: GradientOptions) -> None:
            def trained(kept: StatefulExchange, weights: Arrays, steps: range) -> None:
                for step in steps:
                    kept.begin(weights, np.copy, stepping=True)
                    learn(rank, step, weights)
                    if strategy.due(step):
                        kept(weights, step)

            kept, weights = StatefulExchange("kit", options, strategy), beginning("float32")
            trained(kept, weights, range(1, 6))
            codec = kept.exchange.codec
            of_codec = None if codec is None else codec.state_dict()
            state, of_codec, saved = pickle.loads(
                pickle.dumps((kept.state_dict(), of_codec, weights))
            )
            trained(kept, weights, range(6, 12))
            again = StatefulExchange("kit", options, strategy)
            again.load_state_dict(state)
            if again.exchange.codec is not None:
                again.exchange.codec.load_state_dict(of_codec)
            trained(again, saved, range(6, 12))
            assert same(saved, weights)
            assert same(
                [array for slot in again.state_dict()["slots"] for array in slot],
                [array for slot in kept.state_dict()["slots"] for array in slot],
            )
            with pytest.raises(ValueError, match=mentioning("'another'", "checkpoint")):
                again.load_state_dict({**state, "strategy": "another"})

        self.run(2, body)

    @pytest.mark.parametrize("steps", [0, STEPS])
    def test_untrained_statistics_are_averaged(self, steps: int) -> None:
        def body(rank: int, strategy: Strategy, options: GradientOptions) -> Arrays:
            import farandole.numpy as hvd

            weights, statistics = beginning("float32"), [np.zeros(3), np.zeros(1, "float32")]
            exchange = WeightExchange("kit", options, strategy)
            slots = exchange.slots(weights)
            for step in range(1, steps + 1):
                if strategy.due(step):
                    exchange(weights, slots, step, statistics=statistics)
            hvd.barrier()  # parameter servers keep the weights of the ranks that continue
            for array in statistics:
                array += 2.0 * rank
            exchange.average(weights, slots, statistics=statistics)
            return statistics

        for statistics in self.run(3, body):
            for array in statistics:
                np.testing.assert_allclose(array, 2.0, rtol=1e-6)

    def test_a_rank_without_data_does_not_delay_others(self) -> None:
        def body(rank: int, strategy: Strategy, options: GradientOptions) -> Arrays:
            import farandole.numpy as hvd

            weights = beginning("float64")
            exchange = WeightExchange("kit", options, strategy)
            slots = exchange.slots(weights)
            for step in range(1, 1 + STEPS * (hvd.size() - 1 - rank)):
                learn(rank, step, weights)
                if strategy.due(step):
                    exchange(weights, slots, step)
            hvd.join()
            exchange.average(weights, slots)
            return weights

        if not self.joins:
            with pytest.raises(HorovodInternalError, match="join"):
                self.run(3, body)
            return
        ends = self.run(3, body)
        assert all(same(end, ends[0]) for end in ends)
        assert not same(ends[0], beginning("float64"))

    def test_ranks_with_different_options_are_reported(self) -> None:
        def body(rank: int, strategy: Strategy, options: GradientOptions) -> None:
            own = f"{strategy.spec} of rank {rank}"
            exchange, weights = (
                WeightExchange("kit", options, Renamed(strategy, own)),
                beginning("float32"),
            )
            with pytest.raises(ValueError, match=mentioning("strategy")) as caught:
                exchange(weights, exchange.slots(weights), 1)
            assert f"{own!r}"[:-1] in str(caught.value)  # a codec may follow

        self.run(2, body)


class Renamed:
    """A strategy with another spec."""

    def __init__(self, strategy: Strategy, spec: str) -> None:
        self._strategy, self.spec = strategy, spec
        self.epochs = strategy.epochs
        self.reference = strategy.reference
        self.slots = strategy.slots
        if isinstance(strategy, Consolidating):
            self.consolidate = strategy.consolidate

    def due(self, step: Any) -> Any:
        return self._strategy.due(step)

    def exchange(self, *given: Any) -> None:
        self._strategy.exchange(*given)
