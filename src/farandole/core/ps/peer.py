"""Ranks that average their weights in pairs, in the background: each serves its own to the others.

Of two ranks the lower one asks. A rank averages with one other at a time: who is asked meanwhile
waits a little, and then says that it is busy. So nobody holds what another one waits for, and an
average is atomic: see ``pairs``.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.log import logger
from farandole.core.ps.dial import dial
from farandole.core.ps.listener import Listener
from farandole.core.ps.pairs import Averages, SharedWeights, WholeAverages
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.errors import (
    HorovodInternalError,
    PeerLostError,
    UnfinishedHandshakeError,
    WireError,
)
from farandole.net.handshake import Session
from farandole.net.liveness import await_answer, silent

if TYPE_CHECKING:
    from farandole.base.types import Array

PURPOSE = "weights"
BUSY = 0.05  # seconds for which who is asked waits until its own average is done
SILENCE = 5.0  # seconds without an answer until a partner is left alone
AGAIN = 30.0  # seconds for which it is
# seconds for which a partner may have other weights until that is told: steps take ranks other
# times
APART = 60.0
PAUSE = 0.02  # seconds until one that hung up is called again
HOLD = 0.25  # seconds for which training waits, once, for an average of its own that is late
LAST = 5.0  # seconds for averages under way when this rank ends
_GONE: Message = {"gone": True}


class PeerServer(Listener):
    """What this rank shows to the others, for all of its optimizers. ``rank``: its number in the
    job; ``interfaces``: its addresses; ``ended(rank)``: has that rank left the job in order?
    """

    def __init__(
        self, rank: int, secret: str, interfaces: Sequence[str], ended: Callable[[int], bool]
    ) -> None:
        self.rank, self.secret, self.ended = rank, secret, ended
        self._groups: dict[str, PeerGroup] = {}
        super().__init__(f"rank {rank}", secret, PURPOSE, interfaces)

    def add(self, group: PeerGroup) -> None:
        with self._changed:
            self._groups[group.name] = group

    def remove(self, group: PeerGroup) -> None:
        with self._changed:
            self._groups.pop(group.name, None)

    def close(self) -> None:
        """End averages that are under way, and hang up. May be called twice."""
        with self._changed:
            groups = list(self._groups.values())
        for group in groups:
            group.close()
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
                if group is None:  # it does not know of the others' weights yet, or not any more
                    send(session, {"busy": True, "unknown": True})
                else:
                    group.answer(session, message)
        finally:
            with self._changed:
                groups = list(self._groups.values())
            for group in groups:
                group.look_for(rank)


class PeerGroup:
    """One optimizer's weights on this rank. ``name``: the same on all ranks; ``addresses``: of the
    ranks, each JSON; empty: nobody knows it. ``ranks``: their numbers in the job; ``first``,
    ``statistics``: see ``SharedWeights``; ``tell``: hears of each average that this rank has asked
    for, with its begin and end; ``averages``: how they travel; ``digest``: of what the weights are,
    the same on all ranks.
    """

    def __init__(
        self,
        server: PeerServer,
        name: str,
        addresses: Sequence[str],
        ranks: Sequence[int],
        first: Sequence[Array],
        statistics: int,
        tell: Callable[[str, float, float], None] = lambda what, begin, end: None,
        averages: Callable[[SharedWeights], Averages] = WholeAverages,
        digest: int = 0,
    ) -> None:
        self.name, self._server, self._ranks, self._tell = name, server, ranks, tell
        self._shared = SharedWeights(first, statistics)
        self._sizes, self._digest = [array.size for array in first], digest
        self._averages = averages(self._shared)  # one at a time
        self._partners: list[Partner | None] = [None] * len(ranks)
        self._changed = threading.Condition()
        self._engaged = self._closing = False
        self._late = False  # the average under way: training does not wait for it any more
        # partners, until an average with one of them is done
        self._wanted: Sequence[int] | None = None
        self._failure: Exception | None = None
        self._asker: threading.Thread | None = None
        self.asked = self.answered = self.refused = 0
        self.meet(addresses)
        server.add(self)

    @property
    def trained(self) -> Sequence[Array]:
        """See ``SharedWeights.trained``; once it is closed."""
        return self._shared.trained

    def meet(self, addresses: Sequence[str]) -> None:
        """Take on addresses that nobody knew before."""
        for place, (rank, address) in enumerate(zip(self._ranks, addresses, strict=True)):
            if address and self._partners[place] is None:
                self._partners[place] = Partner(rank, json.loads(address), self._server)

    def take(self, given: Sequence[Array], damp: bool = False) -> int:
        """See ``SharedWeights.take``. First it waits a moment for the average that this rank has
        asked for: where steps are quicker than averages, ranks would drift apart. It depends on no
        other rank's steps. Raises what went wrong in the background, ValueError for other arrays.
        """
        if [array.size for array in given] != self._sizes:
            raise ValueError(f"{self.name}: a model that has grown or shrunk needs a new optimizer")
        with self._changed:
            if not self._late:
                self._late = not self._changed.wait_for(lambda: self._wanted is None, HOLD)
            if self._failure is not None:
                raise self._failure
            return self._shared.take(given, damp)

    def correct(self, ways: Sequence[Array], statistics: Sequence[Array]) -> None:
        """See ``SharedWeights.correct``."""
        with self._changed:
            self._shared.correct(ways, statistics)

    def ask(self, others: Sequence[int]) -> None:
        """Begin to average with the first of ``others`` (places among the ranks) that is not busy,
        unless an average that was asked for is under way.
        """
        with self._changed:
            if self._wanted is not None or self._closing or not others:
                return
            self._wanted, self._late = others, False
            if self._asker is None:
                self._asker = threading.Thread(
                    target=self._run, name="farandole-pairs", daemon=True
                )
                self._asker.start()
            self._changed.notify_all()

    def rest(self, seconds: float | None = None) -> None:
        """Return when no average is under way that this rank has asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is None, seconds)

    def forget(self) -> None:
        """See ``Averages.forget``. No average is under way, here or at other ranks."""
        with self._changed:
            self._averages.forget()

    def close(self) -> None:
        """No average begins any more; those under way come to their end."""
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
            "rank %d: %d averages of weights that it asked for, %d that others did, %d refused"
            " because a rank was busy",
            self._server.rank,
            self.asked,
            self.answered,
            self.refused,
        )

    def look_for(self, rank: int) -> None:
        """A rank that asks this one has hung up. If it is lost, training fails at its next
        exchange: the highest rank asks nobody, and would not hear of it.
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

    # ---- for those that ask ----

    def answer(self, session: Session, message: Message) -> None:
        """Average with a rank that asks."""
        refusal = self._refusal(message)
        if refusal is not None:
            send(session, refusal)
            return
        rank = int(message["rank"])
        try:
            with self._changed:
                self._averages.greeted(rank, message["knows"])
                knows = self._averages.greeting(rank)
            send(session, {"knows": knows})
            session.sock.settimeout(SILENCE)
            head = receive(session)
            if head is None:
                return
            lent = self._averages.room(head["sizes"])
            receive_into(session, lent)
            with self._changed:
                given = self._averages.halve(rank, lent)
                self.answered += 1
            try:
                send(session, _sizes_of(given), given)
            except OSError:
                with self._changed:
                    self._averages.undo(rank)
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
                f"the same weights, but {asks} has others than {own}, of the same sizes. Add,"
                " freeze and unfreeze parameters on all ranks in the same step"
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
        with self._changed:
            self._failure = self._failure or error

    # ---- asking ----

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
            with self._changed:
                knows = self._averages.greeting(partner.rank)
            told = partner.agrees({**question, "knows": knows})
            if told is None:
                self.refused += 1
                return False
            with self._changed:
                self._averages.greeted(partner.rank, told)
                lent = self._averages.lend(partner.rank)
            given = partner.exchange(lent, self._averages.room)
            if given is None:
                return False
            with self._changed:
                self._averages.move(partner.rank, given)
                self.asked += 1
            self._tell(f"AVERAGE_WITH_RANK_{partner.rank}", begin, time.monotonic())
            return True
        finally:
            self._release()


class Partner:
    """Another rank, as the one that asks sees it. ``address``: of its ``PeerServer``."""

    def __init__(self, rank: int, address: dict[str, Any], server: PeerServer) -> None:
        self.rank, self._address, self._server = rank, address, server
        self._session: Session | None = None
        self._silent_until = 0.0
        self._gone = self._told = False
        self._unknown_since = math.inf  # it does not know what this rank would average

    def once_more(self) -> Partner:
        """The same rank, with a connection of its own."""
        return Partner(self.rank, self._address, self._server)

    def reachable(self) -> bool:
        """Connected, or it can be. Raises PeerLostError for a rank that is lost."""
        if self._gone or time.monotonic() < self._silent_until:
            return False
        if self._session is None:
            self._session = self._connected()
        return self._session is not None

    def agrees(self, message: Message) -> dict[str, Any] | None:
        """Its greeting if it averages now, else None. Raises ValueError if it has another model."""
        answer = self._said(lambda session: self._asked(session, message))
        if "error" in answer:
            raise ValueError(answer["error"])
        self._note(known="unknown" not in answer)
        return answer.get("knows")

    def exchange(
        self, lent: Sequence[Array], room: Callable[[Sequence[int]], Sequence[Array]]
    ) -> Sequence[Array] | None:
        """Send what is lent; what it gives for that, in the memory of ``room``. None if it is
        gone.
        """
        given: list[Sequence[Array]] = []
        self._said(lambda session: self._exchanged(session, lent, room, given))
        return given[0] if given else None

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(OSError):
                session.close()

    def _said(self, ask: Callable[[Session], Message | None]) -> Message:
        """Its answer; ``_GONE`` if there is none."""
        assert self._session is not None
        try:
            answer = ask(self._session)
            if answer is not None:
                return answer
        except WireError:
            raise
        except TimeoutError:
            self._leave_alone()
            return _GONE
        except (OSError, HorovodInternalError):
            pass
        self.close()
        self._session = self._connected()  # it has ended, or is lost, if there is none
        return _GONE

    def _asked(self, session: Session, message: Message) -> Message | None:
        session.sock.settimeout(SILENCE)
        send(session, message)
        answer = receive(session)
        session.sock.settimeout(None)
        return answer

    def _exchanged(
        self,
        session: Session,
        lent: Sequence[Array],
        room: Callable[[Sequence[int]], Sequence[Array]],
        given: list[Sequence[Array]],
    ) -> Message | None:
        """It may have done its part already: only its end is a reason not to wait."""
        send(session, _sizes_of(lent), lent)
        while True:
            try:
                await_answer(session.sock, SILENCE)
                break
            except TimeoutError:
                if silent(session.sock):
                    raise
                self._warn()
        answer = receive(session)
        if answer is not None:
            arrays = room(answer["sizes"])
            receive_into(session, arrays)
            given.append(arrays)
        return answer

    def _connected(self) -> Session | None:
        """None if it has left the job in order, or is silent."""
        until = time.monotonic() + SILENCE
        found = self._called()
        while isinstance(found, UnfinishedHandshakeError) and time.monotonic() < until:
            # it hung up: a process that was killed listens a moment longer than it lives
            time.sleep(PAUSE)
            found = self._called()
        if isinstance(found, Session):
            return found
        ended = self._server.ended(self.rank)
        if not ended and isinstance(found, (TimeoutError, UnfinishedHandshakeError)):
            self._leave_alone()
            return None
        self._gone = True
        if ended:
            return None
        text = f"rank {self.rank} cannot be reached any more, to average weights with it ({found})"
        raise PeerLostError(text, self.rank)

    def _called(self) -> Session | Exception:
        """A connection to the first of its addresses that answers, or why there is none."""
        error: Exception = ConnectionError("it has no address")
        for host, port in self._address["at"]:
            try:
                session = dial(
                    {**self._address, "port": port},
                    str(host),
                    self._server.secret,
                    SILENCE,
                    PURPOSE,
                )
            except (OSError, HorovodInternalError) as found:
                error = found
                continue
            session.peer = f"rank {self.rank}"
            return session
        return error

    def _note(self, *, known: bool) -> None:
        self._unknown_since = math.inf if known else min(self._unknown_since, time.monotonic())
        if time.monotonic() - self._unknown_since > APART:
            self._unknown_since = math.inf
            logger.warning(
                "rank %d has averaged nothing with rank %d for %.0f s: one of them has added,"
                " frozen or unfrozen parameters, and the other one has not. Do that on all ranks in"
                " the same step",
                self._server.rank,
                self.rank,
                APART,
            )

    def _leave_alone(self) -> None:
        self.close()
        self._silent_until = time.monotonic() + AGAIN
        self._warn()

    def _warn(self) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "rank %d does not answer rank %d, which would average weights with it: it is"
                " stopped, perhaps; others go on without it",
                self.rank,
                self._server.rank,
            )


def _sizes_of(arrays: Sequence[Array]) -> Message:
    return {"sizes": [array.nbytes for array in arrays]}
