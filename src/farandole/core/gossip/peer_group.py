"""Pairwise averages of weights in the background: each rank serves its weights to the others.

In each pair the lower rank sends the request. A rank averages with one other rank at a time;
further requests wait briefly and are then refused as busy. No rank holds a lock while another rank
waits for it, and an average is atomic: see ``shared_weights``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from farandole.base.log import logger
from farandole.core.gossip.partner import PURPOSE, SILENCE, Partner
from farandole.core.gossip.shared_weights import SharedWeights
from farandole.core.ps.listener import Listener
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.errors import PeerLostError
from farandole.net.handshake import Session

if TYPE_CHECKING:
    from farandole.base.types import Array

BUSY = 0.05  # seconds for which a request waits for the current average to end
HOLD = 0.25  # seconds for which training waits, once, for its own late average
LAST = 5.0  # seconds for averages in progress when this rank ends


class Served(Protocol):
    """The weights of one optimizer, served under a ``name`` that is the same on all ranks."""

    name: str

    def answer(self, session: Session, message: Message) -> None:
        """Answer a message of another rank."""

    def look_for(self, rank: int) -> None:
        """Check a rank that has closed its connection."""

    def close(self) -> None:
        """Finish the averages in progress."""


class Attended(Protocol):
    """The averages by quorum of one optimizer, as seen by this rank."""

    def step_away(self) -> None:
        """Stop averages from waiting for this rank until it attends again."""

    def close(self) -> None:
        """Stop taking part in averages. May be called twice."""


class PeerServer(Listener):
    """Serves the weights of this rank's optimizers to other ranks.

    - ``rank``: This rank's number in the job.
    - ``interfaces``: Its addresses.
    - ``ended(rank)``: Whether that rank has left the job in order.
    - ``survives_losses``: Averages continue without a lost rank, because the job is elastic.
    """

    def __init__(
        self,
        rank: int,
        secret: str,
        interfaces: Sequence[str],
        ended: Callable[[int], bool],
        *,
        survives_losses: bool = False,
    ) -> None:
        self.survives_losses = survives_losses
        self.rank = rank
        self.secret = secret
        self.ended = ended
        self._groups: dict[str, Served] = {}
        self.attended: list[Attended] = []  # averages by quorum in which this rank takes part
        super().__init__(f"rank {rank}", secret, PURPOSE, interfaces)

    def add(self, group: Served) -> None:
        with self._changed:
            self._groups[group.name] = group

    def remove(self, group: Served) -> None:
        with self._changed:
            self._groups.pop(group.name, None)

    def close(self) -> None:
        """Finish the averages in progress, and close all connections. May be called twice."""
        with self._changed:
            groups = list(self._groups.values())
        for group in groups:
            group.close()
        for averages in self.attended:
            averages.close()
        self._hang_up()
        self._join()

    def _converse(self, session: Session) -> None:
        rank = -1
        try:
            while (message := receive(session)) is not None:
                rank = int(message["rank"])
                session.peer = f"rank {rank}"
                with self._changed:
                    group = self._groups.get(str(message["group"]))
                # this rank has not registered these weights yet, or has removed them
                if group is None:
                    send(session, {"busy": True, "unknown": True})
                else:
                    group.answer(session, message)
        finally:
            with self._changed:
                groups = list(self._groups.values())
            for group in groups:
                group.look_for(rank)


class PeerGroup:
    """One optimizer's weights on this rank.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``addresses``: One address for each rank, as JSON; empty if unknown.
    - ``ranks``: The ranks' numbers in the job.
    - ``shared``: The weights.
    - ``on_average``: Called after each average requested by this rank, with its name, start and
      end.
    - ``digest``: A hash of the weights' names and shapes, the same on all ranks.
    """

    def __init__(
        self,
        server: PeerServer,
        name: str,
        addresses: Sequence[str],
        ranks: Sequence[int],
        shared: SharedWeights,
        on_average: Callable[[str, float, float], None] = lambda activity, begin, end: None,
        digest: int = 0,
    ) -> None:
        self.name = name
        self._server = server
        self._ranks = ranks
        self._on_average = on_average
        self._shared = shared
        # memory for a message: one average at a time
        self._memory = [flat.copy() for flat in shared.flat]
        self._digest = digest
        self._partners: list[Partner | None] = [None] * len(ranks)
        self._changed = threading.Condition()
        self._engaged = False
        self._closing = False
        self._late = False  # whether training no longer waits for the current average
        # partners to request, until an average with one of them is done
        self._wanted: Sequence[int] | None = None
        self._failure: Exception | None = None
        self._asker: threading.Thread | None = None
        self.asked = 0
        self.answered = 0
        self.refused = 0
        self.meet(addresses)
        server.add(self)

    @property
    def trained(self) -> Sequence[Array]:
        """The weights (see ``SharedWeights.trained``). For use after ``close``."""
        return self._shared.trained

    def meet(self, addresses: Sequence[str]) -> None:
        """Add addresses that were unknown so far."""
        for place, (rank, address) in enumerate(zip(self._ranks, addresses, strict=True)):
            if address and self._partners[place] is None:
                self._partners[place] = Partner(rank, json.loads(address), self._server)

    def take(self, given: Sequence[Array], damp: bool = False) -> int:
        """Call ``SharedWeights.take`` after a brief wait for the average requested by this rank.

        Without the wait, ranks whose steps are faster than averages would drift apart. The wait
        does not depend on other ranks' steps. Raises errors of the background thread, and
        ValueError for arrays of different sizes.
        """
        if [array.size for array in given] != self._shared.sizes:
            raise ValueError(
                f"{self.name}: the size of the model has changed; create a new optimizer"
            )
        with self._changed:
            if not self._late:
                self._late = not self._changed.wait_for(lambda: self._wanted is None, HOLD)
            if self._failure is not None:
                raise self._failure
            return self._shared.take(given, damp)

    def correct(self, moves: Sequence[Array], statistics: Sequence[Array]) -> None:
        """See ``SharedWeights.correct``."""
        with self._changed:
            self._shared.correct(moves, statistics)

    def ask(self, others: Sequence[int]) -> None:
        """Start to average with the first of ``others`` (indexes of ranks) that is not busy, unless
        a requested average is in progress.
        """
        with self._changed:
            if self._wanted is not None or self._closing or not others:
                return
            self._wanted = others
            self._late = False
            if self._asker is None:
                self._asker = threading.Thread(
                    target=self._run, name="farandole-pairs", daemon=True
                )
                self._asker.start()
            self._changed.notify_all()

    def rest(self, seconds: float | None = None) -> None:
        """Wait until no average requested by this rank is in progress, for up to ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is None, seconds)

    def close(self) -> None:
        """Start no more averages, and wait for the averages in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._wanted is None and not self._engaged, LAST)
        self._server.remove(self)
        for partner in filter(None, self._partners):
            partner.close()
        if self._asker is not None:
            self._asker.join(1.0)
        logger.info(
            "rank %d: %d averages of weights requested, %d by other ranks, %d refused because a"
            " rank was busy",
            self._server.rank,
            self.asked,
            self.answered,
            self.refused,
        )

    def look_for(self, rank: int) -> None:
        """Check a rank that has closed its connection. If it is lost, training fails at its next
        exchange. The highest rank needs this check, because it sends no requests.
        """
        partner = self._partners[self._ranks.index(rank)] if rank in self._ranks else None
        if partner is None or self._closing:
            return
        found = partner.once_more()
        try:
            found.reachable()
        except PeerLostError as error:
            self._fail(error)
        finally:
            found.close()

    # ---- Answering requests ----

    def answer(self, session: Session, message: Message) -> None:
        """Average with a rank that requests it."""
        refusal = self._refusal(message)
        if refusal is not None:
            send(session, refusal)
            return
        try:
            send(session, {"agreed": True})
            session.sock.settimeout(SILENCE)
            if receive(session) is None:
                return
            receive_into(session, self._memory)
            with self._changed:
                self._shared.halve(self._memory)
                self.answered += 1
            try:
                send(session, {}, self._memory)
            except OSError:
                with self._changed:
                    self._shared.undo(self._memory)
                raise
            session.sock.settimeout(None)
        finally:
            self._release()

    def _refusal(self, message: Message) -> Message | None:
        parts = [[kind, count] for kind, count in self._shared.parts]
        asks, own = f"rank {message['rank']}", f"rank {self._server.rank}"
        why = ""
        if message["parts"] != parts:
            why = (
                f"the same model, but {asks} has weights {message['parts']}, and {own} has {parts}"
            )
        elif message["digest"] != self._digest:
            why = (
                f"the same weights, but {asks} and {own} have different weights of the same sizes."
                " Add, freeze and unfreeze parameters on all ranks in the same step"
            )
        if why:
            self._fail(ValueError(f"all ranks must train {why}"))
            return {"error": f"all ranks must train {why}"}
        if not self._engage(BUSY):
            return {"busy": True}
        return None

    def _engage(self, seconds: float | None) -> bool:
        with self._changed:
            free = self._changed.wait_for(lambda: not self._engaged or self._closing, seconds)
            if not free or self._closing:
                return False
            self._engaged = True
            return True

    def _release(self) -> None:
        with self._changed:
            self._engaged = False
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        if self._server.survives_losses and isinstance(error, PeerLostError):
            logger.info("averages in pairs continue without a lost rank: %s", error)
            return
        with self._changed:
            self._failure = self._failure or error

    # ---- Sending requests ----

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._closing)
                if self._wanted is None:
                    return
                others = self._wanted
            try:
                any(
                    self._averaged_with(partner)
                    for other in others
                    if (partner := self._partners[other])
                )
            except Exception as error:  # the training thread raises it at its next exchange
                self._fail(error)
            with self._changed:
                self._wanted = None
                self._changed.notify_all()

    def _averaged_with(self, partner: Partner) -> bool:
        if not partner.reachable() or not self._engage(None):
            return False
        begin = time.monotonic()
        try:
            question = {
                "group": self.name,
                "rank": self._server.rank,
                "parts": self._shared.parts,
                "digest": self._digest,
            }
            if not partner.agrees(question):
                self.refused += 1
                return False
            with self._changed:
                self._shared.lend(self._memory)
            if not partner.exchange(self._memory):
                return False
            with self._changed:
                self._shared.move(self._memory)
                self.asked += 1
            self._on_average(f"AVERAGE_WITH_RANK_{partner.rank}", begin, time.monotonic())
            return True
        finally:
            self._release()
