"""Messages and decisions of rounds. Pure: messages in, units out.

In a round every rank posts its new requests. When all have posted, every rank reads all messages
and makes the same decision on the collectives to run (``negotiation``) and their fusion
(``fusion``). If all ranks post the same signatures and no request waits from an earlier round, the
decision is remembered. A repeated step, such as an optimizer's buckets, then costs one exchange of
a few bytes and no negotiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from farandole.base.types import Request, Response, Sizes
from farandole.core.engine import attached, wire
from farandole.core.engine.cache import SignatureCache
from farandole.core.engine.devices import HOST
from farandole.core.engine.fusion import Placed, Run, Unit, plan
from farandole.core.engine.handle import Entry, Item
from farandole.core.engine.negotiation import Named, Negotiation
from farandole.core.observe.stall.names import listed
from farandole.errors import ShutDownError
from farandole.job.config import Settings

_REMEMBERED = 1024  # decisions to keep


class RoundDecision(NamedTuple):
    """The units that all ranks run now, in order.

    The positions in a unit are indexes into ``items``.

    - ``attached``: Whether the messages contain all elements.
    - ``responses``: The new responses.
    - ``asked``: Each rank's requests; None: every rank requested ``items``.
    - ``since``: For each rank, the times of its requests, if the message has a note.
    """

    placed: Sequence[Placed]
    items: Sequence[Item]
    attached: bool
    responses: Sequence[Response] = ()
    asked: Sequence[Sequence[Named]] | None = None
    since: Sequence[Sequence[float]] = ()


class Repeat(NamedTuple):
    """A single request that was the only request of all ranks in an earlier round: its number and
    the decision.
    """

    number: int
    unit: Unit
    here: Run | None

    def message(self, entry: Entry) -> bytes:
        """Return the message that requests it again."""
        elements = entry.buffer.data.tobytes() if self.here is not None else None
        return wire.alone(self.number, entry.serial, elements)


class Rounds:
    """The rounds of one rank: its requests, its waiting collectives and the remembered decisions.

    - ``sizes``: The current sizes, changed on all ranks in the same round.
    - ``waiting``: This rank's requests of earlier rounds without agreement, by name.
    - ``called``: The numbers of the ranks in messages: ``names``, or 0, 1, 2, ...
    - ``stand_in``: Creates the items of a rank that has joined.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        settings: Settings,
        stand_in: Callable[[str, Request], Item],
        names: Sequence[int] = (),
    ) -> None:
        self.sizes = Sizes(settings.fusion_threshold, settings.bucket_bytes)
        self.waiting: dict[str, Item] = {}
        self._rank = rank
        self._size = size
        self._stand_in = stand_in
        self.called = names or range(size)
        self._negotiation = Negotiation(size, names)
        self._cache = SignatureCache(settings.cache_capacity)
        self._room = attached.room(size)
        self._decisions: dict[bytes, list[Placed]] = {}
        self._repeats: dict[Request, Repeat] = {}  # remembered single requests
        self._decided_in = 0  # the cache generation of the decisions

    def message(self, batch: list[Item], note: wire.Note | None = None) -> bytes:
        """Return the message that requests ``batch``, and sort ``batch`` into the order of the
        message.
        """
        if note is None:
            return self._cache.encode(batch, self._room)
        return wire.with_note(self._cache.encode(batch), note)

    def repeat(self, request: Request) -> Repeat | None:
        """Return the remembered round that requests ``request`` alone, without a note.

        None if it is unknown, or if any rank waits for a collective. If all ranks make this request
        again (``wire.in_step``), the remembered decision applies.
        """
        if self._decided_in != self._cache.generation or not self._negotiation.idle:
            return None
        return self._repeats.get(request)

    def objection(self, stuck: Sequence[str]) -> bytes:
        """Return the message of a rank that is stuck waiting under the names ``stuck``."""
        return wire.objection(self._negotiation.objections(self._rank, stuck) if stuck else ())

    @property
    def joined(self) -> int:
        """The number of ranks that have joined while others have not."""
        return self._negotiation.joined

    def missing(self) -> dict[str, tuple[int, ...]]:
        """See ``Negotiation.missing``."""
        return self._negotiation.missing()

    def cross_waits(self, waits: Iterable[str], unused: Iterable[str]) -> list[str]:
        """See ``Negotiation.cross_waits``."""
        return self._negotiation.cross_waits(self._rank, waits, unused)

    def decide(self, messages: Sequence[bytes], batch: list[Item]) -> RoundDecision:
        """Decide a round in which all ranks posted ``messages`` and this rank requested ``batch``.

        Raises ShutDownError if a rank has left; then ``batch`` is among the waiting requests.
        """
        if self._decided_in != self._cache.generation:
            self._forget()
            self._decided_in = self._cache.generation
        key, placed = self._remembered(messages)
        since: Sequence[Sequence[float]] = ()
        if placed is None and any(map(wire.noted, messages)):
            messages, since = self._read_notes(messages)
            key, placed = self._remembered(messages)
        with_elements = wire.has_elements(messages[0])
        if placed is not None:
            return RoundDecision(placed, batch, with_elements, since=since)
        found = self._negotiate(messages, batch, in_step=bool(key))
        made = list(found.placed)
        if key and found.items is batch:
            made = attached.prepared(made, [item.entry.request for item in batch], self._size)
        if key and self._negotiation.idle and len(self._decisions) < _REMEMBERED:
            self._remember(key, made, batch)
        return found._replace(placed=made, attached=with_elements, since=since)

    def what_waited(self, rank: int, batch: Sequence[Item] = ()) -> str:
        """Return a sentence on the collectives for which this rank, after it posted ``batch``,
        waited when ``rank`` (its number in messages) left; empty without any.
        """
        names = self.names(batch)
        mine = self.called[self._rank]
        if rank == mine or not names:
            return ""
        return f"(Rank {rank} shut down or ended while rank {mine} waited for {listed(names)}.)"

    def names(self, batch: Sequence[Item]) -> list[str]:
        """Return the names of all collectives that this rank, having posted ``batch``, waits
        for.
        """
        return [*self.waiting, *(item.entry.name for item in batch)]

    def _remember(self, key: bytes, made: list[Placed], batch: Sequence[Item]) -> None:
        self._decisions[key] = made
        if len(batch) == len(made) == 1:
            request, placed = batch[0].entry.request, made[0]
            number = self._cache.number(request)
            if number is not None and request.device == HOST:
                self._repeats[request] = Repeat(number, placed.unit, placed.here)

    def _forget(self) -> None:
        self._decisions.clear()
        self._repeats.clear()

    def _remembered(self, messages: Sequence[bytes]) -> tuple[bytes | None, list[Placed] | None]:
        """Return the signatures of all ranks' messages and the remembered decision.

        The signatures are None if the messages differ; the decision is None if it is unknown.
        """
        first = messages[0]
        if not first or not self._negotiation.idle or not wire.in_step(messages):
            return None, None
        key = wire.signatures(first)
        return key, self._decisions.get(key) if key else None

    def _read_notes(self, messages: Sequence[bytes]) -> tuple[list[bytes], list[list[float]]]:
        """Return the messages without notes, and the times of each rank's requests. Adopts rank 0's
        sizes.
        """
        pairs = [wire.without_note(message) for message in messages]
        sizes = pairs[0][1].sizes
        if sizes is not None:
            self.sizes = sizes
            self._forget()
        return [message for message, _ in pairs], [note.since for _, note in pairs]

    def _negotiate(
        self, messages: Sequence[bytes], batch: list[Item], *, in_step: bool
    ) -> RoundDecision:
        """Decide a round by negotiation.

        ``in_step``: all ranks posted the same requests, and none was waiting. If everything runs
        now, the items are the batch.
        """
        decoded = [wire.decode(message) for message in messages]
        named = [self._cache.named(message) for message in decoded]
        self._cache.learn([request for message in decoded for request, _ in message.new])
        waiting = self.waiting
        for item in batch:
            waiting[item.entry.name] = item
        for rank, message in enumerate(decoded):
            if message.shutdown:
                raise ShutDownError(self.what_waited(self.called[rank]), self.called[rank])
        responses = self._negotiation.step(named, [message.objections for message in decoded])
        if in_step and len(batch) == sum(len(response.names) for response in responses):
            items = batch
        else:
            items = [
                waiting.get(name) or self._stand_in(name, request)
                for response in responses
                for name, request in zip(response.names, response.requests, strict=True)
            ]
        positions = {item.entry.name: position for position, item in enumerate(items)}
        threshold = self.sizes.fusion_threshold
        units = plan(
            responses,
            lambda name: waiting[name].entry.request if name in waiting else None,
            threshold,
        )
        for item in items:
            waiting.pop(item.entry.name, None)
        placed = [Placed(unit, tuple(positions[name] for name in unit.names)) for unit in units]
        return RoundDecision(placed, items, False, responses, named)
