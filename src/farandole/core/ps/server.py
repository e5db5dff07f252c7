"""One parameter server: the connections of ranks, with a thread for each, and its replicas.

The replicas receive every event before its rank is answered.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.log import logger
from farandole.core.ps import lineage, snapshot
from farandole.core.ps.clocks import Fate, PushDecision
from farandole.core.ps.group import CentreGroup, Failure
from farandole.core.ps.listener import Listener
from farandole.core.ps.replicas import DISMISSED, Replicas
from farandole.core.ps.wire import PURPOSE, Message, receive, receive_into, send
from farandole.errors import HorovodInternalError, WireError
from farandole.job.report import keys
from farandole.net.handshake import Session, hang_up

if TYPE_CHECKING:
    from farandole.base.types import Array

LOOK = 0.5  # seconds between two checks for the departure of awaited ranks
GRACE = 1.0  # seconds for a disconnected rank to return, here or to a replica
ASK = 0.1  # seconds between two checks of the rank's connection to a replica
Name = tuple[str, str]  # the name of a group: the session in the job, the optimizer


class CentreServer(Listener):
    """A parameter server that serves as soon as it is created.

    - ``interfaces``: The interfaces to listen on, in addition to a Unix socket.
    - ``ended(scope, rank)``: For a rank that is not connected here, "bye" if it has ended, "leave"
      if it has joined, "lost" if its membership of an elastic job is broken, else empty.
    - ``others``: Returns the present addresses of the replicas.
    - ``warning``: Seconds of a rank's wait before the awaited ranks are logged, and again each time
      the wait has doubled.
    - ``publish``: For a server with ``adopt``, publishes the addresses of the primary and its
      replicas, in the order in which they take over.
    """

    def __init__(
        self,
        secret: str,
        interfaces: Sequence[str],
        ended: Callable[[str, int], str],
        others: Callable[[], list[str]] = list,
        warning: float = math.inf,
        publish: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._ended = ended
        self._publish = publish
        self._waiting: list[str] = []  # addresses of replicas that have not been adopted
        self._warning = warning
        self._groups: dict[Name, CentreGroup] = {}
        self._gone: set[tuple[str, int]] = set()  # ranks that have ended in order
        self._attended: dict[tuple[str, int], Client] = {}  # the last connection of each rank
        self._ranks = 0  # connections of ranks
        self._promoted = False
        self._replicas = Replicas(secret, others)
        super().__init__("a parameter server", secret, PURPOSE, interfaces)

    def close(self, seconds: float = 0.0) -> None:
        """Close the server once all ranks have left, or after ``seconds``. May be called twice."""
        with self._changed:
            self._changed.wait_for(lambda: not self._ranks, seconds)
        self._stop()

    def _stop(self) -> None:
        self._hang_up()
        self._replicas.close()
        self._join()

    # ---- Replicas added later ----

    def lead(self) -> None:
        """Serve ranks as the primary, with the replicas that wait to be adopted."""
        with self._changed:
            self._take_over()

    def adopt(self, address: str) -> None:
        """Add a replica, which starts from the present state: now if this server is the primary,
        else when it takes over. Ranks wait meanwhile.
        """
        with self._changed:
            self._waiting.append(address)
            if self._promoted:
                self._recruit()

    def run(self) -> None:
        """Wait until this server has closed, because another server has replaced it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed)
        self._join()

    def _take_over(self) -> None:
        if not self._promoted:
            self._promoted = True
            self._recruit()

    def _recruit(self) -> None:
        if self._publish is None or self._closed:
            return
        while self._waiting:
            self._replicas.add(self._waiting.pop(0), *snapshot.taken(self._groups, self._gone))
        self._publish([self.address, *self._replicas.addresses])

    # ---- connections ----

    def _converse(self, session: Session) -> None:
        first = receive(session)
        if first is not None and first["do"] == "replica":
            self._follow(session)
        elif first is not None:
            self._attend(session, str(first["scope"]), int(first["rank"]))

    def _attend(self, session: Session, scope: str, rank: int) -> None:
        """Serve a rank until it ends in order or is lost."""
        session.peer = f"rank {rank}"
        client = Client(self, session, scope, rank)
        with self._changed:
            self._take_over()
            self._ranks += 1
            self._attended[scope, rank] = client
            self._changed.notify_all()
        try:
            while (message := receive(session)) is not None and not client.answer(message):
                pass
        finally:
            hang_up(session.sock)
            with self._changed:
                self._await_return(client, scope, rank)
                if self.attends(client):
                    del self._attended[scope, rank]
                self._ranks -= 1
                self._changed.notify_all()

    def _await_return(self, client: Client, scope: str, rank: int) -> None:
        """Wait after a connection has ended: a rank that did not end in order may return, or be
        connected to a replica.
        """

        def settled() -> bool:
            return self._closed or (scope, rank) in self._gone or not self.attends(client)

        end = time.monotonic() + GRACE
        with contextlib.suppress(WireError):  # a replica has taken over
            while not self._changed.wait_for(settled, min(ASK, GRACE)):
                late = time.monotonic() >= end or self._ended(scope, rank) == "lost"
                self.event((scope, ""), {"do": "lost" if late else "missed", "rank": rank})
                if late:
                    return

    def attends(self, client: Client) -> bool:
        """Return whether this is the rank's newest connection. Requires the lock."""
        return self._attended.get((client.scope, client.rank)) is client

    def _lose(self, scope: str, rank: int) -> None:
        for (of, _), group in self._groups.items():
            if of == scope and group.failure is None and rank in group.clocks.ranks:
                group.failure = Failure(
                    f"rank {rank} closed its connection to the parameter servers during training",
                    rank,
                )

    # ---- events; the lock is required ----

    def event(self, name: Name, message: Message, arrays: list[Array] | None = None) -> Any:
        """Run an event of a rank, first on the replicas, then here. All run the events in the same
        order.
        """
        if not self._replicas.replicate({**message, "name": list(name)}, arrays):
            logger.warning("another parameter server has replaced this one")
            self._retire()
            raise WireError("another parameter server has replaced this one")
        return self._happen(name, message, arrays)

    def _retire(self) -> None:
        # before another thread reports ranks that moved to the replica as lost
        self._closed = True
        self._changed.notify_all()
        threading.Thread(target=self._stop, name="farandole-ps-stop", daemon=True).start()

    def _happen(self, name: Name, message: Message, arrays: list[Array] | None) -> Any:
        what, rank = message["do"], int(message["rank"])
        found: Any = None
        if what == "hello":
            found = self._greet(name, message, rank)
        elif what in ("leave", "bye"):
            self._leave(name[0], rank, what == "bye")
        elif what == "lost":
            self._lose(name[0], rank)
        elif what == "commit":
            for (scope, _), group in self._groups.items():
                if scope == name[0]:
                    group.commit(int(message["number"]))
        elif what != "missed":  # a "missed" only tests for a replica that has taken over
            found = self._count(name, message, rank, arrays or [])
        self._changed.notify_all()
        return found

    def _count(self, name: Name, message: Message, rank: int, arrays: list[Array]) -> Any:
        group, what = self._groups[name], message["do"]
        if what == "begin":
            group.begin(arrays, int(message.get("steps", 0)), int(message.get("commit", 0)))
            return None
        if group.centre is None:
            raise WireError(f"rank {rank} sent a {what} before a centre existed")
        if what == "push":
            found = group.centre.push(rank, int(message["number"]), int(message["pulled"]), arrays)
            group.compare(late=bool(message.get("late")))
            return found
        group.centre.flush(rank, int(message["number"]), arrays)
        group.compare()
        return None

    def _greet(self, name: Name, message: Message, rank: int) -> CentreGroup:
        mine, is_new = CentreGroup(message), name not in self._groups
        group = self._groups.setdefault(name, mine)
        if is_new and "commit" in message:
            before = lineage.predecessor(self._groups, name)
            if before is not None:
                group.succeed(before, int(message["commit"]))
        if rank not in group.clocks.ranks:
            raise WireError(f"rank {rank} joined a group of other ranks, {group.clocks.ranks}")
        if (
            group.known
            and group.failure is None
            and (why := group.difference(rank, mine, min(group.known)))
        ):
            group.failure = Failure(why)
        group.known.add(rank)
        earlier = self._groups.get((name[0], str(message.get("after", ""))))
        if earlier is not None and earlier is not group:
            earlier.move(rank, group)
        for scope, left in self._gone:
            if scope == name[0]:
                group.leave(left, for_good=True)
        return group

    def _leave(self, scope: str, rank: int, for_good: bool) -> None:
        if for_good:
            self._gone.add((scope, rank))
        for (of, _), group in self._groups.items():
            if of == scope:
                group.leave(rank, for_good=for_good)

    def until(self, true: Callable[[], object], name: Name, client: Client) -> bool:
        """Wait until ``true()``. Return False if this server closes or the rank has a newer
        connection.

        Awaited ranks that never connected and have ended or joined are removed from the group.
        """
        begin = time.monotonic()
        warnings = 0
        look = begin + LOOK  # not since the last change: other groups may cause changes constantly
        while self.attends(client) and not self._closed:
            if true():
                return True
            if (left := look - time.monotonic()) > 0:
                self._changed.wait(left)
            else:
                self._look_for(name, client.rank)
                if self._warn_of_awaited(name, client.rank, time.monotonic() - begin, warnings):
                    warnings += 1
                look = time.monotonic() + LOOK
        return False

    def _awaited(self, name: Name, rank: int) -> list[int]:
        group = self._groups[name]
        return [group.first()] if group.centre is None else group.clocks.awaited(rank)

    def _warn_of_awaited(self, name: Name, rank: int, seconds: float, warnings: int) -> bool:
        """Return whether it is time to log the awaited ranks. Of the ranks that await the same
        ranks, only the first logs them.
        """
        awaited = self._awaited(name, rank)
        if not awaited or seconds < self._warning * 2**warnings:
            return False
        clocks = self._groups[name].clocks
        if not any(
            other < rank and other not in awaited and not clocks.ready(other)
            for other in clocks.here()
        ):
            who = ", ".join(map(str, awaited[:8])) + (" ..." if len(awaited) > 8 else "")
            why = "slower than the others, or hung"
            if self._groups[name].centre is None:
                why = (
                    "its weights initialize this centre. It is slow or hung, or its parameters"
                    " have changed: add, freeze and unfreeze parameters on all ranks in the same"
                    " step"
                )
            logger.warning(
                "rank %d has waited for %d s at a parameter server (of %s) for rank(s) %s to"
                " push: %s",
                rank,
                seconds,
                name[1].partition("/")[0],
                who,
                why,
            )
        return True

    def _look_for(self, name: Name, rank: int) -> None:
        group = self._groups[name]
        for other in self._awaited(name, rank):
            here = other in group.known and (name[0], other) in self._attended
            if not here and (how := self._ended(name[0], other)):
                self.event(name, {"do": how, "rank": other})

    def is_late(self, name: Name) -> bool:
        """Return whether the ranks of this group should have moved to different weights by now."""
        return self._groups[name].late(self._warning)

    def group(self, name: Name) -> CentreGroup:
        return self._groups[name]

    def known_group(self, name: Name) -> CentreGroup | None:
        return self._groups.get(name)

    @property
    def changed(self) -> threading.Condition:
        return self._changed

    # ---- the other side of ``Replicas`` ----

    def _follow(self, session: Session) -> None:
        """Follow the primary's events until it disconnects. If a rank connects here, this server
        becomes the primary.
        """
        session.peer = "the primary of a parameter server"
        while (message := receive(session)) is not None:
            if message == DISMISSED:
                self._dismissed()
                return
            if message["do"] == "state":
                self._receive_state(session, message)
                continue
            name, arrays = (str(message["name"][0]), str(message["name"][1])), None
            with self._changed:
                group = self._groups.get(name)
            if message.get("data"):
                if group is None:
                    raise WireError("the primary sent numbers of an unknown group")
                arrays = group.arrays_of(message)
                receive_into(session, arrays)
            with self._changed:
                if not self._promoted:
                    self._happen(name, message, arrays)
                taken = self._promoted
            # the primary may have sent a dismissal and no longer waits
            with contextlib.suppress(OSError):
                send(session, {"promoted": taken})

    def _receive_state(self, session: Session, message: Message) -> None:
        arrays = snapshot.memory(message)
        receive_into(session, arrays)
        with self._changed:
            if not self._promoted:
                self._groups, self._gone = snapshot.restored(message, arrays)
            taken = self._promoted
        with contextlib.suppress(OSError):
            send(session, {"promoted": taken})

    def _dismissed(self) -> None:
        """End this replica after its dismissal by the primary for not answering; it may have been
        stopped.
        """
        with self._changed:
            if not self._promoted:
                logger.warning(
                    "a replica of a parameter server missed events while it was suspended, and"
                    " exits"
                )
                self._retire()


class Client:
    """One rank's connection, on the server."""

    def __init__(self, server: CentreServer, session: Session, scope: str, rank: int) -> None:
        self._server = server
        self._session = session
        self.scope = scope
        self.rank = rank
        # buffers for input and output, by group
        self._memory: dict[Name, tuple[list[Array], list[Array]]] = {}

    def answer(self, message: Message) -> bool:
        """Handle a message. Return True for the goodbye."""
        what, message["rank"] = message["do"], self.rank
        name = (self.scope, str(message.get("group", "")))
        if what == "hello":
            self._hello(name, message)
        elif what in ("leave", "bye", "commit"):
            with self._server.changed:
                self._server.event(name, message)
            send(self._session, {})
        elif what == "optimizer":
            self._send_optimizer(name, int(message["number"]))
        elif what in ("begin", "push", "flush", "pull"):
            self._exchange(name, message)
        else:
            raise WireError(
                f"rank {self.rank} sent a parameter server the unknown request {what!r}"
            )
        return bool(what == "bye")

    def _hello(self, name: Name, message: Message) -> None:
        with self._server.changed:
            group: CentreGroup = self._server.event(name, message)
            answer = _refusal(group) or {
                "give": group.centre is None and group.first() == self.rank,
                "resumed": group.resumed,
                "kept": bool(group.commits),
            }
        send(self._session, answer)

    def _send_optimizer(self, name: Name, number: int) -> None:
        """Send the state of an optimizer at a commit."""
        with self._server.changed:
            group = self._server.known_group(name)
            state = None if group is None else group.optimizer_state(number)
            begun = group is not None and group.centre is not None
        if state is None or not state.kept:
            send(self._session, {"begun": begun})
            return
        arrays = [array for kept in state.kept for array in kept]
        send(self._session, {"begun": True, "data": True, "steps": state.steps}, arrays)

    def _exchange(self, name: Name, message: Message) -> None:
        with self._server.changed:
            group = self._server.group(name)
        if name not in self._memory:
            self._memory[name] = group.arrays(), group.arrays()
        incoming, outgoing = self._memory[name]
        if message["do"] == "begin":
            incoming = group.arrays_of(message)
        if message["do"] != "pull":
            self._receive(group, message, incoming)
        with self._server.changed:
            answer = self._done(name, message, incoming)
            if answer is None:
                return
            if answer.get("data"):
                centre = group.centre
                assert centre is not None
                for copy, value in zip(outgoing, centre.values, strict=True):
                    copy[:] = value
        send(self._session, answer, outgoing if answer.get("data") else None)

    def _receive(self, group: CentreGroup, message: Message, into: list[Array]) -> None:
        """Receive the arrays of a message into ``into``. Compressed changes are decompressed here,
        so that replicas, which receive ``into``, add up the same values.
        """
        coded = message.pop("coded", None)
        payloads = [] if coded is None else group.payloads(coded)
        receive_into(self._session, [*payloads, *into[len(payloads) :]])
        if payloads:
            group.unpack(payloads, into)

    def _done(self, name: Name, message: Message, incoming: list[Array]) -> Message | None:
        """Wait for the result of a request and return the answer, or None if the rank is no longer
        connected here. Requires the lock.
        """
        server, group, rank, what = self._server, self._server.group(name), self.rank, message["do"]
        if what == "begin":
            server.event(name, {**message, "data": True}, incoming)
            return _refusal(group) or {}
        there = functools.partial(_can_start, group, rank)
        if not server.until(there, name, self):
            return None
        if group.failure is not None or group.centre is None:
            return _refusal(group) or {"give": True}
        decision = PushDecision(Fate.APPLY)
        if what == "flush" and not server.until(
            lambda: group.failure is not None or not group.owes(), name, self
        ):
            return None
        if what == "push":
            message["late"] = server.is_late(name)
        if what != "pull":
            found = server.event(name, {**message, "data": True}, incoming)
        if what == "push":
            decision = found
            with group.answering(rank):
                here = server.until(
                    lambda: group.failure is not None or group.clocks.ready(rank), name, self
                )
            # flushes may continue once this thread has copied the centre
            server.changed.notify_all()
            if not here:
                return None
        counted = {"dropped": decision.dropped, "staleness": decision.staleness}
        return _refusal(group) or {"data": True, "version": group.clocks.version, **counted}


def _can_start(group: CentreGroup, rank: int) -> bool:
    """Return whether the centre exists, or this rank must provide it."""
    return group.failure is not None or group.centre is not None or group.first() == rank


def _refusal(group: CentreGroup) -> Message | None:
    return (
        None if group.failure is None else {"error": group.failure.text, "lost": group.failure.lost}
    )


def stored_end(store: Any) -> Callable[[str, int], str]:
    """Return the function ``ended`` of a server, which reads the job's store."""

    def ended(scope: str, rank: int) -> str:
        with contextlib.suppress(OSError, HorovodInternalError):
            if store.try_get(keys.outcome(rank)) is not None:
                return "bye"
            return "leave" if store.try_get(keys.away(scope, rank)) == b"" else ""
        return ""

    return ended


def stored_end_of_member(store: Any) -> Callable[[str, int], str]:
    """Return the function ``ended`` of a server of an elastic job, whose outcomes are stored by
    process.
    """
    processes: dict[int, Sequence[int]] = {}  # in rank order, by the number of the membership

    def ended(scope: str, rank: int) -> str:
        number = int(scope.partition(".")[0])
        with contextlib.suppress(OSError, HorovodInternalError):
            if store.try_get(keys.broken(number)) is not None:
                return "lost"
            if number not in processes:
                data = store.try_get(keys.membership(number)) or b'{"members": []}'
                processes[number] = [member[0] for member in json.loads(data)["members"]]
            own = processes[number][rank : rank + 1]
            if own and store.try_get(keys.outcome(own[0])) is not None:
                return "bye"
            return "leave" if store.try_get(keys.away(scope, rank)) == b"" else ""
        return ""

    return ended
