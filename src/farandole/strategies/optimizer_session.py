"""An optimizer's session on one engine: its name, its ballot, and the order of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry, Handle
from farandole.strategies.ballot import WORDS, Ballot, Tally


class OptimizerSession:
    """The use of one engine by one optimizer.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``ballot_name``: The name of its ballot's collective.
    - ``overlap``: Whether buckets are launched while backward runs.
    - ``joins``: The number of completed joins when the buckets were laid out.
    - ``rounds``: The number of completed rounds.
    - ``arrivals``: The gradients in order of arrival while this is recorded, then None.
    - ``abandoned``: Whether a new session must begin, even on the same engine.
    """

    def __init__(self, engine: Engine, name: str, *, overlap: bool) -> None:
        self.engine = engine
        self.name = name
        self.overlap = overlap
        self.ballot_name = f"{name}.filled"
        self.joins = engine.joins
        self.rounds = 0
        self.arrivals: dict[int, None] | None = {}
        self.abandoned = False
        self._words = np.zeros(WORDS, dtype=np.int64)
        self._entries = self._entries_of(self.ballot_name)
        self._pending: Handle | None = None

    def send(self, ballot: Ballot, on_done: Callable[[], None] | None) -> None:
        """Send this rank's ballot. ``on_done`` is called, on any thread, when all ranks have sent
        their ballots.
        """
        ballot.pack(self._words)
        self._pending = self.engine.submit(self._entries, soon=True, on_done=on_done)

    def receive(self) -> Tally:
        """Wait for the ballots of all ranks."""
        pending = self._pending
        self._pending = None
        assert pending is not None
        pending.wait()
        return Tally.unpack(self._words)

    def poll(self, ballot: Ballot) -> Tally:
        """Exchange ballots without settling gradients. Collective."""
        ballot.pack(self._words)
        self.engine.run(self._entries_of(f"{self.name}.poll"))
        return Tally.unpack(self._words)

    def _entries_of(self, name: str) -> Sequence[Entry]:
        request = Request(name, Kind.ALLREDUCE, DType.INT64, (WORDS,), ReduceOp.MIN)
        return (Entry(request, Buffer(self._words, self._words, DType.INT64)),)
