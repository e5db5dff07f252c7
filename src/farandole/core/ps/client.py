"""Each rank's client of the job's parameter servers."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.base.contracts import PushCodec
from farandole.base.log import logger
from farandole.core.ps.centre import KINDS
from farandole.core.ps.clocks import Rule
from farandole.core.ps.connection import ServerConnection
from farandole.core.ps.group import codec_of_pushes, facts
from farandole.core.ps.layout import spread
from farandole.core.ps.saved_states import LoadedStates, SavedOptimizer
from farandole.core.ps.share import Sending, Share, Tensor
from farandole.core.ps.staleness import Staleness
from farandole.core.ps.wire import Message
from farandole.errors import DataError, HorovodInternalError, PeerLostError

if TYPE_CHECKING:
    from farandole.base.types import Array


class Pushed(NamedTuple):
    """The result of a push. ``staleness``: the number of centre updates since this rank's last
    pull, at the server with the most; ``dropped``: whether the push came too late to count.
    """

    staleness: int
    dropped: bool


class Servers:
    """All servers of the job.

    - ``addresses``: For each server, the addresses of the server and its replicas.
    - ``host``: The address of the job's store for this rank.
    - ``scope``: This rank's current session in the job.
    - ``patience``: See ``ServerConnection``.
    - ``look_up``: In an elastic job, returns the present addresses of the server with a number.
    - ``loaded``: The optimizers' states with which the first centres begin.
    """

    def __init__(
        self,
        addresses: Sequence[Sequence[str]],
        host: str,
        secret: str,
        rank: int,
        scope: str,
        patience: float = 0.0,
        look_up: Callable[[int], Sequence[str]] | None = None,
        loaded: LoadedStates | None = None,
    ) -> None:
        self.loaded = LoadedStates() if loaded is None else loaded
        self.taken: list[SavedOptimizer] = []  # loaded states of this session's centres
        hello = {"do": "rank", "rank": rank, "scope": scope}
        self.rank = rank
        self.servers = [
            ServerConnection(
                number,
                own,
                host,
                secret,
                hello,
                patience,
                None if look_up is None else functools.partial(look_up, number),
            )
            for number, own in enumerate(addresses)
        ]
        self._lock = threading.Lock()
        self._clients: list[CentreClient] = []

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
        after: CentreClient | None = None,
        commit: int = -1,
    ) -> CentreClient:
        """Return the centre of one optimizer's ``weights`` (float32 or float64), which starts with
        the weights of the first of ``ranks``.

        - ``codec``: The codec for pushes.
        - ``after``: The optimizer's previous centre.
        - ``commit``: The number of the commit to which the ranks of an elastic job have returned;
          the centre takes over from the previous membership's centre (-1: from none).

        Raises ValueError if the weights or the strategy differ between ranks.
        """
        # each process set counts its own optimizers
        name += f"/{','.join(map(str, ranks))}"
        found = CentreClient(
            self, name, ranks, rule, spec, weights, names, statistics, codec, after, commit
        )
        self._clients.append(found)
        if after is not None:
            after.is_replaced = True
        return found

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Let one thread at a time send requests and receive answers.

        An exception leaves unread answers, which later requests would mistake for theirs, so all
        connections are closed. After an interrupt they are reopened immediately, because servers
        give up absent ranks.
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

    @property
    def follows_centre(self) -> bool:
        """True if a centre is asynchronous, and therefore never rolled back."""
        return any(not client.rule.sync for client in self._clients)

    def commit(self, number: int) -> None:
        """Make the servers keep the states of their optimizers for a rank's commit ``number``."""
        if any(client.rule.sync and client.rule.optimizer in KINDS for client in self._clients):
            self._tell({"do": "commit", "number": number})
        self.loaded.drop(self.taken)

    def optimizer_states(self, number: int) -> list[SavedOptimizer]:
        """Return the states of the servers' optimizers at commit ``number``; of asynchronous
        centres, the present ones.

        Raises OSError or HorovodInternalError if a server is lost, and DataError if a server no
        longer has the state of the commit.
        """
        return [
            client.optimizer_state(number)
            for client in self._clients
            if client.rule.optimizer in KINDS and not client.is_replaced
        ]

    def leave(self) -> None:
        """Stop other ranks from waiting for this rank until it pushes again."""
        self._tell({"do": "leave"})

    def _tell(self, message: Message) -> None:
        with self.speaking():
            asked = [server.ask(message) for server in self.servers]
            for server, sent in zip(self.servers, asked, strict=True):
                server.answer(sent, message, None, ())

    def close(self, failed: bool = False) -> None:
        """Leave the servers and log the staleness. The goodbye is skipped if this rank
        ``failed``.
        """
        for server in self.servers:
            server.hurry()
        try:
            if not failed:
                self._say_goodbye()
        finally:
            for server in self.servers:
                server.close()
        for client in self._clients:
            client.log_staleness()

    def _say_goodbye(self) -> None:
        message = {"do": "bye"}
        with self._lock:
            asked = [server.ask(message) for server in self.servers]
            for server, sent in zip(self.servers, asked, strict=True):
                with contextlib.suppress(OSError, HorovodInternalError):
                    server.answer(sent, message, None, ())


class CentreClient:
    """This rank's end of a centre (see ``Servers.group``). Arrays in its calls are the weights,
    followed by the statistics.
    """

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
        after: CentreClient | None = None,
        commit: int = -1,
    ) -> None:
        self._servers = servers
        self._name = name
        self._spec = spec
        self._codec = codec
        self._staleness = Staleness()
        self.rule = rule
        self._resumed = False  # whether the next push only fetches the centre
        self._follows = after is not None
        self.is_replaced = False  # whether the optimizer's weights are at another centre now
        arrays = [*weights, *statistics]
        self._sizes = [array.size for array in arrays]
        self._weights = [
            (name, tuple(array.shape)) for name, array in zip(names, weights, strict=True)
        ]
        self._kinds = [array.dtype for array in weights]
        labels = [*names, *(f"statistics {number}" for number in range(len(statistics)))]
        tensors = [
            Tensor(name, array.shape, array.dtype.newbyteorder("<").str, place >= len(weights))
            for place, (name, array) in enumerate(zip(labels, arrays, strict=True))
        ]
        pieces = spread(self._sizes, len(servers.servers))
        self._shares = [
            Share(server, own, tensors, codec)
            for server, own in zip(servers.servers, pieces, strict=True)
        ]
        self._begins_with: SavedOptimizer | None = None  # from the loaded commit
        self._is_kept = False  # whether the servers keep the optimizer's state of a commit
        self._still = [array.copy() for array in statistics]  # values in the last answer
        self._number = 0  # number of the last answered push or flush
        self._versions = [0] * len(self._shares)  # versions in the last answers
        described = [
            [name, array.shape, array.dtype.name]
            for name, array in zip(labels, arrays, strict=True)
        ]
        by = "" if codec is None else codec.spec
        codec_of_pushes(by)  # raise errors here, not on the servers
        before = "" if after is None else after._name
        self._hello(
            lambda share: {
                "after": before,
                **({} if commit < 0 else {"commit": commit}),
                **facts(ranks, rule, spec, described, share.parts, share.statistics, by),
            }
        )

    def push(self, first: Sequence[Array], changes: Sequence[Array]) -> Pushed:
        """Push the changes since the last pull and the statistics, wait as the rule requires, and
        overwrite them with the centre.

        ``first``: the initial weights, in case the centre needs them. The first push to the centre
        of an earlier membership only fetches the centre, and counts as dropped: the changes may
        contain a push of that membership that the centre has already applied.
        """
        if self._catch_up(changes, first):
            self._staleness.see(0, dropped=True)
            return Pushed(0, True)
        answers = self._run("push", changes, first)
        found = Pushed(
            max(answer["staleness"] for answer in answers),
            any(answer["dropped"] for answer in answers),
        )
        self._staleness.see(*found)
        return found

    def flush(self, first: Sequence[Array], changes: Sequence[Array]) -> Pushed:
        """Push outside of the step count, without waiting for other ranks.

        Statistics are sent as changes, too: a stopped rank's values are already in the centre, and
        older than the centre's values. For the first call after a change of ranks, see ``push``.
        """
        if self._catch_up(changes, first):
            return Pushed(0, False)
        count = len(changes) - len(self._still)
        statistics = changes[count:]
        ways = [own - last for own, last in zip(statistics, self._still, strict=True)]
        self._run("flush", [*changes[:count], *ways], first)
        for own, centre in zip(statistics, ways, strict=True):
            np.copyto(own, centre)
        return Pushed(0, False)

    def pull(self, into: Sequence[Array]) -> None:
        """Copy the current centre into ``into``."""
        self._run("pull", into, ())

    def _catch_up(self, into: Sequence[Array], first: Sequence[Array]) -> bool:
        """Copy the centre of an earlier membership into ``into``, only once; return whether it was
        copied.
        """
        resumed, self._resumed = self._resumed, False
        if resumed:
            self._run("pull", into, first)
        return resumed

    def log_staleness(self) -> None:
        """Log the staleness of this rank's pushes, and the bytes saved by its codec."""
        logger.info(
            "rank %d, strategy %s: %d pushes to the parameter servers, %d discarded as too late;"
            " staleness: mean %.2f, maximum %d",
            self._servers.rank,
            self._spec,
            self._staleness.pushes,
            self._staleness.dropped,
            self._staleness.mean,
            self._staleness.maximum,
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
                self._resumed |= bool(answer.get("resumed"))
                self._is_kept |= bool(answer.get("kept"))

    def _run(self, what: str, arrays: Sequence[Array], first: Sequence[Array]) -> list[Message]:
        """Send a request to all servers, then receive all answers into ``arrays``.

        The number advances once all servers have answered. An interrupted request is sent again
        under the same number, including later changes, and a server that has already handled it
        does not count it twice. The codec's state advances at the same time, but not for a push
        that came too late at a server.
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
            f"{len(sizes)} weights and statistics were passed, but the parameter servers have"
            f" {len(self._sizes)}"
        )
        if differ:
            what = "array {} has {} elements, but {} on the parameter servers".format(*differ[0])
        raise ValueError(
            f"{self._label()}: {what}; if the size of a model changes, create a new optimizer"
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
            begin, kept = self._beginning(share)
            values = [*share.outgoing, *kept]
            self._check(share.server.answer(share.server.ask(begin, values), begin, values, ()))
            share.pack(flat)
            answer = share.server.answer(
                share.server.ask(message, arrays), message, arrays, share.incoming
            )
        self._check(answer)
        return answer

    def _beginning(self, share: Share) -> tuple[Message, list[Array]]:
        """Return the message that creates the centre, and the share of the optimizer's state from
        the loaded commit that follows the weights.
        """
        message: Message = {"do": "begin", "group": self._name}
        if self._follows or self._is_kept or self.rule.optimizer not in KINDS:
            return message, []
        loaded, taken = self._servers.loaded, self._servers.taken
        if self._begins_with is None:
            self._begins_with = loaded.find(self._name, self.rule, self._weights, taken)
            if self._begins_with is None:
                self._warn_of_lost_state()
                return message, []
            taken.append(self._begins_with)
        found = self._begins_with
        if not found.kept:
            return message, []
        memory = share.optimizer_memory(len(found.kept))
        share.pack_optimizer(memory, found.kept)
        # the servers number the first synchronization, too
        return {**message, "steps": found.steps, "commit": loaded.commit + 1}, memory

    def _warn_of_lost_state(self) -> None:
        loaded = self._servers.loaded
        if loaded.warned or not loaded.lacks(self.rule):
            return
        loaded.warned = True
        logger.warning(
            "%s: commit %d has no state for optimizer=%s of strategy %s on the parameter servers,"
            " which begins again with zeros for %d weight(s). To continue exactly, use the"
            " strategy and the weights of the job that wrote the commit",
            self._label(),
            loaded.commit,
            self.rule.optimizer,
            self._spec,
            len(self._weights),
        )

    def optimizer_state(self, number: int) -> SavedOptimizer:
        """Return the optimizer's state; see ``Servers.optimizer_states``."""
        kinds = KINDS[self.rule.optimizer]
        sizes = self._sizes[: len(self._weights)]
        kept = [
            [np.zeros(size, kind) for size, kind in zip(sizes, self._kinds, strict=True)]
            for _ in range(kinds)
        ]
        memories = [share.optimizer_memory(kinds) for share in self._shares]
        message = {"do": "optimizer", "group": self._name, "number": number}
        with self._servers.speaking():
            asked = [share.server.ask(message) for share in self._shares]
            answers = [
                share.server.answer(sent, message, None, memory)
                for share, sent, memory in zip(self._shares, asked, memories, strict=True)
            ]
        for share, memory, answer in zip(self._shares, memories, answers, strict=True):
            if answer.get("data"):
                share.unpack_optimizer(memory, kept)
            elif answer["begun"]:
                raise DataError(
                    f"{self._label()}: parameter server {share.server.number} no longer has its"
                    f" state at commit {number}"
                )
        steps = max((int(answer.get("steps", 0)) for answer in answers), default=0)
        name, optimizer = self._name, self.rule.optimizer
        return SavedOptimizer(name, optimizer, self._weights, steps, kept if steps else [])

    def _check(self, answer: Message) -> None:
        if "error" in answer:
            if answer["lost"] >= 0:
                raise PeerLostError(answer["error"], answer["lost"])
            raise ValueError(f"{self._label()}: {answer['error']}")


def _flat(arrays: Sequence[Array]) -> list[Array]:
    """Return flat views. Non-contiguous arrays are refused: they would be copied, and answers would
    be lost.
    """
    assert all(array.flags.c_contiguous for array in arrays)
    return [array.reshape(-1) for array in arrays]
