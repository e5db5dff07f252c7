"""A rank's end of the job's parameter servers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.base.contracts import PushCodec
from farandole.base.log import logger
from farandole.core.ps.clocks import Rule
from farandole.core.ps.dial import SECONDS, reach
from farandole.core.ps.group import codec_of_pushes, facts
from farandole.core.ps.layout import spread
from farandole.core.ps.share import Sending, Share, Tensor
from farandole.core.ps.wire import Message, receive, receive_into, send
from farandole.errors import HorovodInternalError, PeerLostError, ServerLostError, WireError
from farandole.net.handshake import Session
from farandole.net.liveness import await_answer

if TYPE_CHECKING:
    from farandole.base.types import Array


LAST = 5.0  # seconds for the answer to bye
SILENCE = 10.0  # seconds without a byte until a server has to let in a new connection
PROOF = 10.0  # seconds for that
AGAIN = 1.0  # seconds for a new connection after an interrupt


class Pushed(NamedTuple):
    """What became of a push: ``staleness``: updates of the centre that this rank had not seen, at
    the server where they were most; ``dropped``: it came too late to count.
    """

    staleness: int
    dropped: bool


class Server:
    """One server with its replicas, of which one is connected. ``number``: for messages;
    ``patience``: seconds for which one that is stopped is waited for, if it has no replica; 0: for
    ever.
    """

    def __init__(
        self,
        number: int,
        addresses: Sequence[str],
        host: str,
        secret: str,
        hello: Message,
        patience: float,
    ) -> None:
        self.number, self._addresses = number, [json.loads(address) for address in addresses]
        self._host, self._secret, self._hello, self._patience = host, secret, hello, patience
        self._place = 0
        self._hurried = self._late = self._warned = False
        self._trouble = ""
        self._silent_since = 0.0
        self._session: Session | None = None

    def ask(self, message: Message, arrays: Sequence[Array] | None = None) -> bool:
        """Send a message; False if the server is lost (``answer`` tries its replicas)."""
        try:
            session = self._open()
            with self._limited(session):
                send(session, message, arrays, self._look)
        except (OSError, HorovodInternalError) as error:
            self._late, self._trouble = isinstance(error, TimeoutError), str(error)
            return False
        return True

    def answer(
        self, asked: bool, message: Message, arrays: Sequence[Array] | None, into: Sequence[Array]
    ) -> Message:
        """The answer, also if a replica has to give it. Raises PeerLostError if none is left,
        TimeoutError if there is no time: who does not answer at once may be well, and its replica
        must not take over.
        """
        while True:
            trouble = self._trouble or "it hung up"
            if asked:
                try:
                    found = self._receive(into)
                    if found is not None:
                        return found
                except WireError:
                    raise
                except (OSError, HorovodInternalError) as error:
                    trouble, self._late = str(error), isinstance(error, TimeoutError)
            if self._hurried and self._late:
                raise TimeoutError(f"{self._name()} did not answer within {LAST:g} s")
            self._next(trouble)
            asked = self.ask(message, arrays)

    def _receive(self, into: Sequence[Array]) -> Message | None:
        session = self._open()
        self._wait(session)
        with self._limited(session):
            found = receive(session)
            if found is not None and found.get("data"):
                receive_into(session, into, self._look)
        return found

    def _wait(self, session: Session) -> None:
        """Until something comes. A server may wait for other ranks as long as those take."""
        self._silent_since = time.monotonic()
        while not self._hurried:
            try:
                await_answer(session.sock, SILENCE)
                return
            except TimeoutError:
                self._look()

    def _look(self) -> None:
        """It is silent. If it lets in no new connection, it is stopped: its replica goes on. Where
        none is left, we say so and go on waiting, as long as we may.
        """
        if self._hurried:
            raise TimeoutError(f"it says nothing for {LAST:g} s")
        try:
            reach(self._addresses[self._place], self._host, self._secret, PROOF).close()
            self._silent_since = time.monotonic()
        except (OSError, HorovodInternalError) as error:
            if self._place + 1 < len(self._addresses):
                raise
            self._warn(error)
            seconds = time.monotonic() - self._silent_since
            if 0 < self._patience <= seconds:
                raise TimeoutError(
                    f"it did nothing for {seconds:.0f} s, and --stall-check-shutdown-time-seconds"
                    f" is {self._patience:g}"
                ) from error

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            ends = (
                f"this rank ends after {self._patience:g} s"
                if self._patience
                else "this rank waits for it"
            )
            logger.warning(
                "%s does nothing, and lets in no connection (%s): it is stopped, or its host is"
                " gone; %s, and with --replicas 2 another one would go on",
                self._name(),
                error,
                ends,
            )

    @contextlib.contextmanager
    def _limited(self, session: Session) -> Iterator[None]:
        """Of what is under way, some goes on within ``SILENCE``."""
        self._silent_since, self._trouble = time.monotonic(), ""
        session.sock.settimeout(LAST if self._hurried else SILENCE)
        yield
        session.sock.settimeout(LAST if self._hurried else None)

    def _open(self, seconds: float = SECONDS) -> Session:
        if self._session is None:
            session = reach(self._addresses[self._place], self._host, self._secret, seconds)
            try:
                session.peer = self._name()
                session.sock.settimeout(LAST if self._hurried else None)
                send(session, self._hello)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def renew(self) -> None:
        """Connect again, if that is soon done; else the next ``ask`` does."""
        with contextlib.suppress(OSError, HorovodInternalError):
            self._open(AGAIN)

    def _next(self, trouble: str) -> None:
        name, self._late = self._name(), False
        self.close()
        if self._place + 1 == len(self._addresses):
            raise ServerLostError(
                f"{name} was lost ({trouble}), and no replica of it is left: what it held is lost"
            )
        self._place += 1
        logger.warning("%s was lost (%s); its replica goes on", name, trouble)

    def _name(self) -> str:
        address = self._addresses[self._place]
        which = f", replica {self._place}," if self._place else ""
        return (
            f"parameter server {self.number}{which} on {address['host']} (process {address['pid']})"
        )

    def hurry(self) -> None:
        """From now on, it is lost if it does not answer within seconds."""
        self._hurried = True
        if self._session is not None:
            self._session.sock.settimeout(LAST)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class Servers:
    """All of the job's. ``addresses``: of each with its replicas; ``host``: that of the job's
    store, as this rank calls it; ``scope``: this stay in the job; ``patience``: see ``Server``.
    """

    def __init__(
        self,
        addresses: Sequence[Sequence[str]],
        host: str,
        secret: str,
        rank: int,
        scope: str,
        patience: float = 0.0,
    ) -> None:
        hello = {"do": "rank", "rank": rank, "scope": scope}
        self.rank = rank
        self.servers = [
            Server(number, own, host, secret, hello, patience)
            for number, own in enumerate(addresses)
        ]
        self._lock = threading.Lock()
        self._groups: list[Group] = []

    def group(
        self,
        name: str,
        ranks: Sequence[int],
        rule: Rule,
        spec: str,
        weights: Sequence[Array],
        names: Sequence[str],
        statistics: Sequence[Array] = (),
        codec: PushCodec | None = None,
        after: Group | None = None,
    ) -> Group:
        """The centre of one optimizer's ``weights`` (float32 or float64), which begins with those
        of the first of ``ranks``. ``codec``: compresses pushes; ``after``: that of the optimizer so
        far. Raises ValueError if this rank's are not like those of another.
        """
        # process sets count their optimizers each for itself
        name += f"/{','.join(map(str, ranks))}"
        found = Group(self, name, ranks, rule, spec, weights, names, statistics, codec, after)
        self._groups.append(found)
        return found

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """One thread at a time asks and hears.

        What ends it early leaves answers unread, which later questions would take for theirs: the
        connections go. An interrupt makes new ones at once, for servers give up ranks that stay
        away.
        """
        with self._lock:
            try:
                yield
            except BaseException as error:
                for server in self.servers:
                    server.close()
                if not isinstance(error, (OSError, HorovodInternalError)):
                    for server in self.servers:
                        server.renew()
                raise

    def leave(self) -> None:
        """No rank waits for this one until it pushes again."""
        message = {"do": "leave"}
        with self.speaking():
            asked = [server.ask(message) for server in self.servers]
            for server, sent in zip(self.servers, asked, strict=True):
                server.answer(sent, message, None, ())

    def close(self, failed: bool = False) -> None:
        """Say bye (not if this rank ends with an error), and tell of the staleness seen."""
        for server in self.servers:
            server.hurry()
        try:
            if not failed:
                self._say_bye()
        finally:
            for server in self.servers:
                server.close()
        for group in self._groups:
            group.tell()

    def _say_bye(self) -> None:
        message = {"do": "bye"}
        with self._lock:
            asked = [server.ask(message) for server in self.servers]
            for server, sent in zip(self.servers, asked, strict=True):
                with contextlib.suppress(OSError, HorovodInternalError):
                    server.answer(sent, message, None, ())


class Group:
    """See ``Servers.group``. Arrays of its calls are the weights, and after them the statistics."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        ranks: Sequence[int],
        rule: Rule,
        spec: str,
        weights: Sequence[Array],
        names: Sequence[str],
        statistics: Sequence[Array],
        codec: PushCodec | None = None,
        after: Group | None = None,
    ) -> None:
        self._servers, self._name, self._spec, self._codec = servers, name, spec, codec
        self.pushes = self.dropped = self.stalest = self._total = 0
        arrays = [*weights, *statistics]
        self._sizes = [array.size for array in arrays]
        told = [*names, *(f"statistics {number}" for number in range(len(statistics)))]
        tensors = [
            Tensor(name, array.shape, array.dtype.newbyteorder("<").str, place >= len(weights))
            for place, (name, array) in enumerate(zip(told, arrays, strict=True))
        ]
        pieces = spread(self._sizes, len(servers.servers))
        self._shares = [
            Share(server, own, tensors, codec)
            for server, own in zip(servers.servers, pieces, strict=True)
        ]
        self._still = [array.copy() for array in statistics]  # after the last answer
        self._number = 0  # of the last push or flush that was answered
        self._versions = [0] * len(self._shares)  # of the last answers
        described = [
            [name, array.shape, array.dtype.name] for name, array in zip(told, arrays, strict=True)
        ]
        by = "" if codec is None else codec.spec
        codec_of_pushes(by)  # an error here is better than one at the servers
        before = "" if after is None else after._name
        self._hello(
            lambda share: {
                "after": before,
                **facts(ranks, rule, spec, described, share.parts, share.statistics, by),
            }
        )

    def push(self, first: Sequence[Array], changes: Sequence[Array]) -> Pushed:
        """Push what has changed since the last pull, and the statistics; wait as the rule says, and
        put the centre in their place. ``first``: the weights at the beginning, should the centre
        want them.
        """
        answers = self._run("push", changes, first)
        found = Pushed(
            max(answer["staleness"] for answer in answers),
            any(answer["dropped"] for answer in answers),
        )
        self.pushes, self.dropped = self.pushes + 1, self.dropped + found.dropped
        self._total, self.stalest = (
            self._total + found.staleness,
            max(self.stalest, found.staleness),
        )
        return found

    def flush(self, first: Sequence[Array], changes: Sequence[Array]) -> Pushed:
        """Push outside of the count of steps; nobody waits. Of statistics, too, how they have
        changed: those of a rank that has stopped are in the centre already, and are older than what
        is there.
        """
        count = len(changes) - len(self._still)
        statistics = changes[count:]
        ways = [own - last for own, last in zip(statistics, self._still, strict=True)]
        self._run("flush", [*changes[:count], *ways], first)
        for own, centre in zip(statistics, ways, strict=True):
            np.copyto(own, centre)
        return Pushed(0, False)

    def pull(self, into: Sequence[Array]) -> None:
        """The centre, as it is."""
        self._run("pull", into, ())

    @property
    def staleness(self) -> float:
        """The mean of all pushes."""
        return self._total / max(self.pushes, 1)

    def tell(self) -> None:
        """Log what was seen."""
        logger.info(
            "rank %d, strategy %s: %d pushes to the parameter servers, %d of them too late to"
            " count; staleness: mean %.2f, maximum %d",
            self._servers.rank,
            self._spec,
            self.pushes,
            self.dropped,
            self.staleness,
            self.stalest,
        )
        if (codec := self._codec) is not None:
            rank, spec = self._servers.rank, codec.spec
            logger.info(
                "rank %d, codec %s: %d bytes sent, %d saved", rank, spec, codec.sent, codec.saved
            )

    def _hello(self, message_of: Callable[[Share], Message]) -> None:
        with self._servers.speaking():
            for share in self._shares:
                message = {"do": "hello", "group": self._name, **message_of(share)}
                answer = share.server.answer(share.server.ask(message), message, None, ())
                self._check(answer)

    def _run(self, what: str, arrays: Sequence[Array], first: Sequence[Array]) -> list[Message]:
        """Ask all servers, then take all answers, which are written over ``arrays``.

        Numbers count when all have answered: what was interrupted is sent again under its number,
        with what has been learned since, and a server that had it takes it for the same. So does
        what a codec keeps; of a push that came too late at a server it keeps what it had before.
        """
        self._compare(arrays)
        if what != "pull":
            self._compare(first)
        flat, begin = _flat(arrays), _flat(first)
        number = self._number + (what != "pull")
        with self._servers.speaking():
            sendings, asked = [], []
            for share, version in zip(self._shares, self._versions, strict=True):
                share.pack(flat)
                message = {"do": what, "group": self._name, "number": number, "pulled": version}
                sendings.append(share.sending(message, self._servers.rank))
                asked.append(share.server.ask(message, sendings[-1].arrays))
            answers = [
                self._answer(share, sent, sending, flat, begin)
                for share, sent, sending in zip(self._shares, asked, sendings, strict=True)
            ]
        for share, sending, answer in zip(self._shares, sendings, answers, strict=True):
            share.unpack(flat)
            share.arrived(sending, taken=not answer["dropped"])
        self._versions = [answer["version"] for answer in answers]
        self._number = number
        self._still = [array.copy() for array in arrays[len(arrays) - len(self._still) :]]
        return answers

    def _compare(self, arrays: Sequence[Array]) -> None:
        sizes = [array.size for array in arrays]
        if sizes == self._sizes:
            return
        held = zip(sizes, self._sizes, strict=False)
        differ = [(place, *both) for place, both in enumerate(held) if both[0] != both[1]]
        what = (
            f"{len(sizes)} weights and statistics were given where the parameter servers hold"
            f" {len(self._sizes)}"
        )
        if differ:
            what = "array {} has {} numbers where the parameter servers hold {}".format(*differ[0])
        raise ValueError(
            f"{self._label()}: {what}; a model that has grown or shrunk needs a new optimizer"
        )

    def _label(self) -> str:
        return self._name.partition(".weights.")[0]

    def _answer(
        self,
        share: Share,
        sent: bool,
        sending: Sending,
        flat: Sequence[Array],
        first: Sequence[Array],
    ) -> Message:
        message, arrays, _ = sending
        answer = share.server.answer(sent, message, arrays, share.incoming)
        while answer.get("give") and "error" not in answer:
            share.pack(first)
            begin = {"do": "begin", "group": self._name}
            self._check(
                share.server.answer(
                    share.server.ask(begin, share.outgoing), begin, share.outgoing, ()
                )
            )
            share.pack(flat)
            answer = share.server.answer(
                share.server.ask(message, arrays), message, arrays, share.incoming
            )
        self._check(answer)
        return answer

    def _check(self, answer: Message) -> None:
        if "error" in answer:
            if answer["lost"] >= 0:
                raise PeerLostError(answer["error"], answer["lost"])
            raise ValueError(f"{self._label()}: {answer['error']}")


def _flat(arrays: Sequence[Array]) -> list[Array]:
    """Views. Arrays that are not contiguous would be copied, and not written to."""
    assert all(array.flags.c_contiguous for array in arrays)
    return [array.reshape(-1) for array in arrays]
