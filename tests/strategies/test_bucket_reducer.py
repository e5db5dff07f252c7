"""Whatever the ranks do in whatever order, all end with the same gradients, and none waits for ever:
programs that hypothesis makes up, over engines in threads.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.collectives import over
from farandole.core.engine import Engine, Entry
from farandole.core.transports.inproc import World
from farandole.job import context
from farandole.job.config.settings import Settings
from farandole.strategies.bucket_reducer import BucketReducer
from farandole.strategies.options import GradientOptions
from tests import pool

SIZES = (3, 1, 2)  # of an optimizer's parameters
PARAMETERS = len(SIZES)
BUCKET = 16  # bytes: one or two parameters each

Pass = tuple[tuple[int, int], ...]  # the gradients that a backward computes: optimizer, parameter
EVERYTHING: Pass = tuple(itertools.product(range(2), range(PARAMETERS)))


class Parameter:
    """A gradient as its framework sees it; backward adds to it in place, as autograd does."""

    dtype = DType.FLOAT64
    device = "CPU"

    def __init__(self, name: str, count: int) -> None:
        self.count = count
        self.identity = (name, (count,), "float64")
        self.grad: Any = None
        self._place: Any = None
        self._sent: Any = None

    def compute(self, value: float) -> None:
        if self.grad is None:
            self.grad = np.zeros(self.count)
        self.grad += value

    def trainable(self) -> bool:
        return True

    def current(self, *, frozen: bool = False) -> Any:
        return self.grad

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def holds(self, gradient: Any) -> bool:
        return gradient is self._sent

    def place(self, array: Any) -> None:
        self._place = array

    def store(self, gradient: Any) -> None:
        if gradient is not self._place:
            self._place[:] = gradient
        self.grad = self._sent = self._place

    def load(self) -> None:
        self.grad = self._sent = self._place

    def leave(self) -> None:
        if self.grad is not None and self.grad is self._place:
            self.grad = self._place.copy()

    def pack(self, gradient: Any) -> Buffer:
        self._sent = np.zeros(self.count) if gradient is None else gradient
        return Buffer(self._sent, self._sent, self.dtype)

    def unpack(self) -> None:
        self.grad = self._sent

    def copy(self) -> Any:
        return self.grad.copy()

    def amplify(self, factor: float, old: Any) -> None:
        before = 0 if old is None else old
        self.grad[:] = before + (self.grad - before) * factor


class Phase(NamedTuple):
    """What each rank does until all have joined: ``steps[rank][step]`` are the backward passes
    before the optimizers step. ``restart``: ``shutdown()`` and ``init()`` follow.
    """

    steps: list[list[list[Pass]]]
    restart: bool


class Rank:
    """A process: an engine, two optimizers, and its clock."""

    def __init__(
        self, link_of: Callable[[int], Any], options: GradientOptions, overlap: str
    ) -> None:
        self._link_of = link_of
        self._options = options
        self.session = -1
        self.engine: Any = None
        self._settings = Settings(bucket_bytes=BUCKET, overlap=overlap)
        self.init()

    def init(self) -> None:
        self.session += 1
        participants = None if self.engine is None else self.engine.participants
        self.engine = Engine(over(self._link_of(self.session)), self._settings)
        if participants is not None:
            self.engine.participants = participants
        HERE.rank = self

    def make_optimizers(self) -> None:
        self.parameters = [
            [Parameter(f"{optimizer}.{index}", count) for index, count in enumerate(SIZES)]
            for optimizer in range(2)
        ]
        self.reducers = [BucketReducer(each, self._options) for each in self.parameters]  # type: ignore[arg-type]
        self._backward = 0

    def backward(self, computed: Pass, value: float) -> None:
        self._backward += 1
        for optimizer, index in computed:
            self.reducers[optimizer].backward = self._backward
            self.parameters[optimizer][index].compute(value)
            self.reducers[optimizer].ready(index, self.parameters[optimizer][index].grad)
        for optimizer in dict.fromkeys(optimizer for optimizer, _ in computed):
            self.reducers[optimizer].end_of_backward()

    def step(self, optimizer: int) -> list[Any]:
        """The gradients that the step uses."""
        self.reducers[optimizer].before_step()
        found = [
            one.grad if one.grad is None else one.grad.copy() for one in self.parameters[optimizer]
        ]
        self.reducers[optimizer].after_step()
        self.reducers[optimizer].check_droppable()
        for one in self.parameters[optimizer]:
            one.grad = None
        return found

    def join(self) -> None:
        none: Any = np.empty(0, np.uint8)
        request = Request("join", Kind.JOIN, DType.UINT8)
        self.engine.run([Entry(request, Buffer(none, none, DType.UINT8))])


HERE = threading.local()  # the rank that a thread is


@pytest.fixture(autouse=True, scope="module")
def ranks_are_threads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "engine", lambda process_set=None: HERE.rank.engine)
        patch.setattr(context, "engines", lambda: [HERE.rank.engine])
        patch.setattr(context, "settings", lambda: HERE.rank._settings)
        patch.setattr(context, "local_size", lambda: 1)
        patch.setattr(context, "session_id", lambda: str(HERE.rank.session))
        yield


def value_of(phase: int, rank: int, step: int, turn: int) -> float:
    return float(1 + turn + 4 * (rank + 4 * (step + 4 * phase)))


def train(rank: Rank, number: int, phases: Sequence[Phase], pauses: Sequence[float]) -> list[Any]:
    rank.make_optimizers()
    waits = itertools.cycle(pauses)
    found = []
    for phase, (steps, restart) in enumerate(phases):
        for step, passes in enumerate(steps[number]):
            for turn, computed in enumerate(passes):
                time.sleep(next(waits))
                rank.backward(computed, value_of(phase, number, step, turn))
            time.sleep(next(waits))
            found.append([rank.step(optimizer) for optimizer in range(2)])
        rank.join()
        if restart:
            rank.engine.shutdown()
            rank.init()
    rank.engine.shutdown()
    return found


def expected(phases: Sequence[Phase], op: ReduceOp, number: int) -> list[Any]:
    """What a process gets that computes the gradients of all ranks."""
    found = []
    for phase, (steps, _) in enumerate(phases):
        for step in range(len(steps[number])):
            sums: dict[tuple[int, int], float] = {}
            for rank, own in enumerate(steps):
                for turn, computed in enumerate(own[step] if step < len(own) else ()):
                    for one in computed:
                        sums[one] = sums.get(one, 0.0) + value_of(phase, rank, step, turn)
            divisor = len(steps) if op is ReduceOp.AVERAGE else 1
            found.append(
                [
                    [
                        np.full(count, sums[optimizer, index] / divisor)
                        if (optimizer, index) in sums
                        else None
                        for index, count in enumerate(SIZES)
                    ]
                    for optimizer in range(2)
                ]
            )
    return found


@st.composite
def passes_of_a_step(draw: Any) -> list[Pass]:
    """Some of all gradients, in any order, cut into backward passes."""
    order = draw(st.permutations(EVERYTHING))
    order = order[: draw(st.integers(0, len(order)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=2)))
    ends = [0, *cuts, len(order)]
    return [tuple(order[begin:end]) for begin, end in itertools.pairwise(ends) if end > begin]


def programs(n: int) -> st.SearchStrategy[list[Phase]]:
    of_rank = st.lists(passes_of_a_step(), max_size=3)
    phase = st.builds(Phase, st.lists(of_rank, min_size=n, max_size=n), st.booleans())
    return st.lists(phase, min_size=1, max_size=3)


def check_program(
    phases: Sequence[Phase], op: ReduceOp, overlap: str, pauses: Sequence[Sequence[float]]
) -> None:
    n = len(phases[0].steps)
    worlds = [World(n) for _ in range(len(phases) + 1)]
    options = GradientOptions(op=op)
    results = pool.threads(
        n,
        lambda number: number,
        lambda number: train(
            Rank(lambda session: worlds[session].link(number), options, overlap),
            number,
            phases,
            pauses[number],
        ),
        deadline=30,
        close=False,
    )
    for number, found in enumerate(results):
        for one, other in zip(found, expected(phases, op, number), strict=True):
            for mine, wanted in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
                if wanted is None:
                    assert mine is None
                else:
                    np.testing.assert_allclose(mine, wanted, rtol=1e-12)


PAUSES = st.lists(st.sampled_from([0.0, 0.0, 0.001]), min_size=1, max_size=4)


@pytest.mark.parametrize("op", [ReduceOp.AVERAGE, ReduceOp.SUM])
@pytest.mark.parametrize("n", [2, 3])
@given(data=st.data(), overlap=st.sampled_from(["on", "off"]))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_any_interleaving_ends_with_equal_gradients(
    n: int, op: ReduceOp, data: Any, overlap: str
) -> None:
    phases = data.draw(programs(n))
    pauses = data.draw(st.lists(PAUSES, min_size=n, max_size=n))
    check_program(phases, op, overlap, pauses)


@pytest.mark.parametrize("op", [ReduceOp.AVERAGE, ReduceOp.SUM])
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_a_further_round_counts_joined_ranks_as_zeros(op: ReduceOp, overlap: str) -> None:
    first, second = EVERYTHING[:4], EVERYTHING[4:]
    step = [first, second]
    check_program([Phase([[step], [step, step]], restart=False)], op, overlap, [[0.0], [0.0]])
