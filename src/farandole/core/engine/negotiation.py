"""Decides which collectives may run now: a pure function of all ranks' requests so far.

Every rank reads every rank's messages, in rounds, and feeds them to its own ``Negotiation``. All
ranks read the same messages and make the same decisions, without a coordinator. A collective is
ready when all ranks have requested it under one name; a group, when all its members are ready.
Collectives run in the order in which the last rank requests them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farandole.base.types import Kind, Refusal, Request, Response
from farandole.core.engine.mismatch import (
    codec_mismatch,
    group_mismatch,
    kind_mismatch,
    mismatch,
)

Named = tuple[str, Request]  # the name may include a serial number, the request does not


JOIN = "join"
_NOT_WITH_JOIN = {
    Kind.ALLGATHER: (
        "Allgather is not supported with Join at this time. "
        # Horovod's text; the argument does not exist there either
        "Specify sparse_as_dense=True if using DistributedOptimizer"
    ),
    Kind.ALLTOALL: "Alltoall is not supported with Join at this time.",
    Kind.BROADCAST: "Broadcast is not supported with Join at this time.",
    Kind.REDUCESCATTER: "Reducescatter is not supported with Join at this time.",
    Kind.BARRIER: "Barrier is not supported with Join at this time.",
    Kind.ALLOCATE: "Allocating shared buffers is not supported with Join at this time.",
}


class Negotiation:
    """The state of agreement among ``size`` ranks. ``names``: their numbers in messages."""

    def __init__(self, size: int, names: Sequence[int] = ()) -> None:
        self.size = size
        self._names = names or range(size)
        self._asked: dict[str, list[Request | None]] = {}
        self._groups: dict[str, list[str]] = {}
        # the program's name -> ranks that object to waiting under it (``conflicts``)
        self._objected: dict[str, set[int]] = {}
        self._joined: list[int] = []  # in the order of their joins

    @property
    def idle(self) -> bool:
        """True when no rank waits for another."""
        return not self._asked

    @property
    def joined(self) -> int:
        """The number of ranks that have joined while others have not."""
        return len(self._joined)

    def missing(self) -> dict[str, tuple[int, ...]]:
        """Return, for each requested name, the ranks that have not requested it and have not
        joined.
        """
        return {
            name: tuple(
                rank
                for rank, request in enumerate(asked)
                if request is None and rank not in self._joined
            )
            for name, asked in self._asked.items()
        }

    def cross_waits(self, rank: int, waits: Iterable[str], unused: Iterable[str]) -> list[str]:
        """Return the names of ``unused`` that would deadlock with ``waits``, the names that
        ``rank`` waits for.

        A rank that is missing in one of ``waits`` has requested such a name, and ``rank`` has not.
        """
        missing = self.missing()
        away = {other for name in waits for other in missing.get(name, ())}
        return [
            name
            for name in unused
            if rank in missing.get(name, ())
            and any(self._asked[name][other] is not None for other in away)
        ]

    def conflicts(self) -> dict[str, list[str]]:
        """Return the program's names under which every rank requests a collective, but not all the
        same kind, with the full names of these collectives.
        """
        names_of: dict[str, list[str]] = {}
        for name, row in self._asked.items():
            given = _verb_and_given(name, _one_of(row))[1]
            if given:
                names_of.setdefault(given, []).append(name)
        return {
            given: names
            for given, names in names_of.items()
            if len(self._verbs(names)) > 1 and self._all_in(names)
        }

    def objections(self, rank: int, stuck: Iterable[str]) -> list[str]:
        """Return the new conflicts of ``rank``, whose program waits for ``stuck``: those without an
        objection by the rank.
        """
        waits = set(stuck)
        return [
            given
            for given, names in self.conflicts().items()
            if not waits.isdisjoint(names) and rank not in self._objected.get(given, ())
        ]

    def step(
        self, messages: Sequence[Sequence[Named]], objections: Sequence[Sequence[str]] = ()
    ) -> list[Response]:
        """Process all ranks' requests and objections of a round. Return the units that all ranks
        run now, in order.
        """
        touched: dict[str, None] = {}
        joined = len(self._joined)
        for rank, asked in enumerate(messages):
            for name, request in asked:
                row = self._asked.get(name)
                if row is None:
                    row = self._asked[name] = [None] * self.size
                row[rank] = request
                touched.pop(name, None)  # ordered by each name's last request
                touched[name] = None
                if request.kind is Kind.JOIN:
                    self._joined.append(rank)
        if len(self._joined) > joined:  # collectives may be complete without the joined ranks
            touched = dict.fromkeys([*touched, *self._asked])
            touched[JOIN] = touched.pop(JOIN)  # after units that can still run
        broken = self._torn_groups(touched)
        released = [
            response
            for name in touched
            if name in self._asked and self._complete(name)
            for response in self._release(name)
        ]
        for rank, objected in enumerate(objections):
            for given in objected:
                self._objected.setdefault(given, set()).add(rank)
        return broken + released + (self._hopeless() if self._objected else [])

    def _hopeless(self) -> list[Response]:
        """Fail conflicts in which all ranks wait: no rank can make the call that another rank waits
        for.
        """
        conflicts = self.conflicts()
        self._objected = {
            given: ranks for given, ranks in self._objected.items() if given in conflicts
        }
        return [
            self._fail(conflicts[given], kind_mismatch(given, self._verbs(conflicts[given])))
            for given, ranks in list(self._objected.items())
            if len({*ranks, *self._joined}) == self.size
        ]

    def _verbs(self, names: Iterable[str]) -> list[str]:
        return list(
            dict.fromkeys(_verb_and_given(name, _one_of(self._asked[name]))[0] for name in names)
        )

    def _all_in(self, names: Iterable[str]) -> bool:
        rows = [self._asked[name] for name in names]
        return all(
            rank in self._joined or any(row[rank] is not None for row in rows)
            for rank in range(self.size)
        )

    def _torn_groups(self, touched: Iterable[str]) -> list[Response]:
        """Fail groups to which ranks gave different numbers of tensors, once every rank has
        requested its own.

        The members' names include that number, so the ranks would wait for each other forever.
        """
        fresh = dict.fromkeys(
            group_of(name, request)
            for name in touched
            for request in self._asked[name]
            if request is not None and request.group
        )
        if not fresh:
            return []
        sizes: dict[str, dict[int, int]] = {group: {} for group in fresh}
        for name, row in self._asked.items():
            for rank, request in enumerate(row):
                if request is not None and request.group:
                    sizes.get(group_of(name, request), {})[rank] = request.group_size
        torn = {
            group: {self._names[rank]: size for rank, size in of_rank.items()}
            for group, of_rank in sizes.items()
            if len(set(of_rank.values())) > 1 and len({*of_rank, *self._joined}) == self.size
        }
        return [self._broken({group}, group_mismatch(group, of)) for group, of in torn.items()]

    def _complete(self, name: str) -> bool:
        row = self._asked[name]
        if None not in row:
            return True
        return name != JOIN and all(
            row[rank] is not None or rank in self._joined for rank in range(self.size)
        )

    def _release(self, name: str) -> list[Response]:
        """Return the response for a complete name; for the last member of a group, the response for
        the group.
        """
        requests = [request for request in self._asked[name] if request is not None]
        first = requests[0]
        groups = {group_of(name, request) for request in requests if request.group}
        if len({(request.group, request.group_size) for request in requests}) > 1:
            return [self._broken(groups, mismatch(self._asked[name]))]
        if not first.group:
            return [self._answer(name)]
        group = group_of(name, first)
        members = self._groups.setdefault(group, [])
        members.append(name)
        if len(members) < first.group_size:
            return []
        return self._release_group(self._groups.pop(group))

    def _release_group(self, members: list[str]) -> list[Response]:
        """Return the response for a complete group. If one member fails, all do."""
        answers = [self._answer(name) for name in sorted(members, key=_member_order)]
        names = tuple(name for answer in answers for name in answer.names)
        requests = tuple(request for answer in answers for request in answer.requests)
        parts = tuple(part for answer in answers for part in answer.parts)
        first = next((answer for answer in answers if answer.error), answers[0])
        return [
            Response(
                first.kind, names, requests, parts, first.error, answers[0].absent, first.refusal
            )
        ]

    def _broken(self, groups: set[str], error: str) -> Response:
        """Fail all members of groups whose members differ between ranks; they would wait
        forever.
        """
        names = [
            name
            for name, row in self._asked.items()
            if any(
                request and request.group and group_of(name, request) in groups for request in row
            )
        ]
        for group in groups:
            self._groups.pop(group, None)
        return self._fail(names, error)

    def _fail(self, names: Sequence[str], error: str) -> Response:
        asked = tuple(_one_of(self._asked.pop(name)) for name in names)
        return Response(asked[0].kind, tuple(names), asked, (), error)

    def _answer(self, name: str) -> Response:
        row = self._asked.pop(name)
        requests = [request for request in row if request is not None]
        absent = tuple(rank for rank, request in enumerate(row) if request is None)
        kind = requests[0].kind
        alike = len({request.codec for request in requests}) == 1
        error = mismatch(row, self._names) if alike else codec_mismatch(row, self._names)
        refusal = Refusal.MISMATCH
        if absent and not error:
            error = _NOT_WITH_JOIN.get(kind, "")
            refusal = Refusal.JOINED
        parts: tuple[tuple[int, ...], ...] = ()
        if not error and kind is Kind.ALLGATHER:
            parts = (tuple(request.shape[0] for request in requests),)
        elif not error and kind is Kind.ALLTOALL:
            parts = tuple(tuple(splits_of(request, self.size)) for request in requests)
        elif kind is Kind.JOIN:
            parts = ((self._joined[-1],),)
            self._joined.clear()
        return Response(kind, (name,), (requests[0],), parts, error, absent, refusal)


def group_of(name: str, request: Request) -> str:
    """Return the group of the member with the full name ``name``. A serial number in the name is
    kept: it distinguishes unnamed groups.
    """
    return request.group + name[len(request.name) :]


def _one_of(row: Sequence[Request | None]) -> Request:
    return next(request for request in row if request is not None)


_VERBS = {
    f"{prefix}{kind.name.lower()}{suffix}"
    for prefix, suffix in (("", ""), ("grouped_", ""), ("", "_object"))
    for kind in Kind
    if kind not in (Kind.ALLOCATE, Kind.JOIN)
}


def _verb_and_given(name: str, request: Request) -> tuple[str, str]:
    """Return the function called by the program and its name, or the number of an unnamed call. The
    name is empty if the program did not make the call itself.
    """
    verb, _, given = (request.group or request.name).partition(".")
    if verb not in _VERBS:
        return verb, ""
    if given.startswith("noname"):  # an object has several parts
        given = "noname"
    return verb, given + name[len(request.name) :]


def _member_order(name: str) -> tuple[int, str]:
    """Return the sort key of a group's member: its number in a name like <base>_<i>of<n>, and its
    name.
    """
    tail = name.rpartition("_")[2].partition("of")[0]
    return (int(tail) if tail.isdigit() else 0, name)


def splits_of(request: Request, size: int) -> Sequence[int]:
    """Return the number of this rank's rows for each rank."""
    return request.splits or [request.shape[0] // size] * size
