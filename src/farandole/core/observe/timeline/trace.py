"""Converts the engine's records into the events of a Chrome trace. Pure.

As in Horovod's timeline every tensor is a "process". Its activities are NEGOTIATE_<KIND>, with a
tick for each rank at the time when it was ready; then <KIND>, which contains QUEUE and
<WIRE>_<KIND>. The latter contains the parts of the exchange, shown at the first of the fused
tensors. A part that overlaps the others has a separate line. Unnamed tensors share the name of
their request; concurrent ones are on separate threads.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.base.types import Kind, Request

Named = tuple[str, Request]
OVERLAPPING = ("NETWORK_ALLREDUCE",)  # parts of an exchange that overlap others


class Settled(NamedTuple):
    """A settled round. Times are seconds of the job's clock."""

    time: float
    asked: Sequence[Sequence[Named]]
    since: Sequence[Sequence[float]]
    agreed: Sequence[str]
    failed: Sequence[str]


class Started(NamedTuple):
    time: float
    kind: Kind
    names: Sequence[str]
    nbytes: int


class Exchanged(NamedTuple):
    """An exchange that is not a collective, from ``begin`` to ``time``. ``tensor``: the exchanged
    tensor.
    """

    time: float
    begin: float
    name: str
    tensor: str


class ExchangePart(NamedTuple):
    """A part of an exchange, from ``begin`` to ``time``. ``tensor``: the first of the fused
    tensors.
    """

    time: float
    begin: float
    name: str
    tensor: str


class Finished(NamedTuple):
    time: float
    kind: Kind
    names: Sequence[str]


class Scope(NamedTuple):
    """The identity of an engine: a prefix for its names, its wire, and the job ranks of its
    members.
    """

    prefix: str
    wire: str
    ranks: Sequence[int]


Record = tuple[Scope, Settled | Started | ExchangePart | Exchanged | Finished]


class _Tensor:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.free: list[int] = []
        self.lanes = 0

    def lane(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.lanes += 1
        return self.lanes - 1


class _Flight:
    """A tensor in flight, from the first request to the end. ``open``: the current activities."""

    def __init__(self, tensor: _Tensor, request: Request) -> None:
        self.tensor = tensor
        self.request = request
        self.tid = tensor.lane()
        self.overlap_lane: int | None = None  # the lane of overlapping parts
        self.open: list[str] = []
        self.last = 0.0


class Trace:
    """The events of one file. ``events(record)`` returns JSON texts in the order of the file."""

    def __init__(
        self,
        rank: int,
        size: int,
        begin: float,
        epoch: float,
        tensors: Mapping[str, int] | None = None,
        *,
        mark_cycles: bool = False,
    ) -> None:
        """Create a trace.

        - ``begin``: The time that is 0 in the file.
        - ``epoch``: The same time in seconds since 1970.
        - ``tensors``: The numbers of the tensors in an existing file.
        """
        self._rank = rank
        self._size = size
        self._begin = begin
        self._epoch = epoch
        self._mark_cycles = mark_cycles
        self.latest = begin  # the time of the last record
        self._tensors = {label: _Tensor(pid) for label, pid in (tensors or {}).items()}
        self._flights: dict[str, _Flight] = {}
        # per lane: the end of the last activity, before which none may begin
        self._lasts: dict[tuple[int, int], float] = {}
        self._out: list[str] = []

    def opening(self) -> list[str]:
        """Return the first event, which describes the file."""
        head = {
            "ph": "M",
            "pid": 0,
            "name": "process_name",
            "args": {"name": f"rank {self._rank}"},
            "start_time_since_epoch_in_micros": int(self._epoch * 1e6),
            "farandole": {"rank": self._rank, "size": self._size, "begin": self._begin * 1e6},
        }
        return [json.dumps(head)]

    def events(self, record: Record) -> list[str]:
        scope, what = record
        self.latest = what.time
        if isinstance(what, Settled):
            self._settle(scope, what)
        elif isinstance(what, Started):
            for flight in self._known(scope, what.names):
                self._end(flight, what.time)
                args = f'{{"tensors":{len(what.names)},"bytes":{what.nbytes}}}'
                self._start(flight, f"{scope.wire}_{what.kind.name}", what.time, args)
        elif isinstance(what, ExchangePart):
            for flight in self._known(scope, [what.tensor]):
                self._part(flight, what)
        elif isinstance(what, Exchanged):
            tensor = self._tensor(scope.prefix + what.tensor)
            lane = tensor.lane()
            self._whole(tensor.pid, lane, what)
            heapq.heappush(tensor.free, lane)
        else:
            for flight in self._known(scope, what.names):
                self._end(flight, what.time)
                self._land(flight, what.time)
            for name in what.names:
                self._flights.pop(scope.prefix + name, None)
        return self._take()

    def lost(self, count: int) -> list[str]:
        """Return a mark for ``count`` discarded records."""
        return [
            f'{{"ph":"i","name":"LOST {count}'
            f' RECORDS","ts":{self._ts(self.latest)},"pid":0,"tid":0,"s":"g"}}'
        ]

    def closing(self) -> list[str]:
        """Return the events that end all open activities."""
        for flight in self._flights.values():
            while flight.open:
                self._end(flight, self.latest)
        self._flights.clear()
        return self._take()

    def _take(self) -> list[str]:
        events, self._out = self._out, []
        return events

    def _known(self, scope: Scope, names: Sequence[str]) -> list[_Flight]:
        """Return the flights whose start was recorded; a timeline may start in the middle of a
        flight.
        """
        flights = (self._flights.get(scope.prefix + name) for name in names)
        return [flight for flight in flights if flight is not None and flight.open]

    def _settle(self, scope: Scope, what: Settled) -> None:
        if self._mark_cycles:
            ts = self._ts(what.time)
            self._out.append(f'{{"ph":"i","name":"CYCLE_START","ts":{ts},"pid":0,"tid":0,"s":"g"}}')
        ready: dict[str, tuple[Request, list[tuple[int, float]]]] = {}
        for index, named in enumerate(what.asked):
            times = what.since[index] or [what.time] * len(named)
            for (name, request), time in zip(named, times, strict=True):
                ready.setdefault(name, (request, []))[1].append((scope.ranks[index], time))
        for name, (request, ticks) in ready.items():
            self._negotiate(
                scope.prefix + name, scope.prefix + request.name, request, ticks, what.time
            )
        for flight in self._known(scope, what.agreed):
            self._end(flight, what.time)
            self._start(flight, flight.request.kind.name, what.time)
            self._start(flight, "QUEUE", what.time)
        for flight in self._known(scope, what.failed):
            self._end(flight, what.time)
            self._release(flight)
        for name in what.failed:
            self._flights.pop(scope.prefix + name, None)

    def _negotiate(
        self, key: str, label: str, request: Request, ticks: Sequence[tuple[int, float]], now: float
    ) -> None:
        flight = self._flights.get(key)
        if flight is not None and len(flight.open) > 1:  # its end was lost
            while flight.open:
                self._end(flight, now)
            self._release(flight)
            flight = None
        if flight is None:
            flight = self._flights[key] = _Flight(self._tensor(label), request)
            flight.last = self._lasts.get((flight.tensor.pid, flight.tid), self._begin)
            first = min(now, min(time for _, time in ticks))
            self._start(flight, f"NEGOTIATE_{request.kind.name}", first)
        for rank, time in sorted(ticks, key=lambda tick: tick[1]):
            ts = self._ts(max(flight.last, min(time, now)))
            where = f'"pid":{flight.tensor.pid},"tid":{flight.tid}'
            self._out.append(f'{{"ph":"X","name":"{rank}","ts":{ts},"dur":0,{where}}}')

    def _part(self, flight: _Flight, what: ExchangePart) -> None:
        tid = flight.tid
        if what.name in OVERLAPPING:
            if flight.overlap_lane is None:
                flight.overlap_lane = flight.tensor.lane()
            tid = flight.overlap_lane
        self._whole(flight.tensor.pid, tid, what)

    def _whole(self, pid: int, tid: int, what: ExchangePart | Exchanged) -> None:
        begin = max(what.begin, self._begin)
        where = f'"pid":{pid},"tid":{tid}'
        duration = f"{max(0.0, what.time - begin) * 1e6:.3f}"
        self._out.append(
            f'{{"ph":"X","name":"{what.name}","ts":{self._ts(begin)},"dur":{duration},{where}}}'
        )

    def _land(self, flight: _Flight, time: float) -> None:
        request = flight.request
        self._end(
            flight, time, f'{{"dtype":"{request.dtype.value}","shape":"{list(request.shape)}"}}'
        )
        self._release(flight)

    def _release(self, flight: _Flight) -> None:
        self._lasts[flight.tensor.pid, flight.tid] = flight.last
        heapq.heappush(flight.tensor.free, flight.tid)
        if flight.overlap_lane is not None:
            heapq.heappush(flight.tensor.free, flight.overlap_lane)

    def _tensor(self, label: str) -> _Tensor:
        tensor = self._tensors.get(label)
        if tensor is None:
            pid = len(self._tensors) + 1
            tensor = self._tensors[label] = _Tensor(pid)
            text = json.dumps(label)
            self._out.append(
                f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{text}}}}}'
            )
            self._out.append(
                f'{{"ph":"M","name":"process_sort_index","pid":{pid},'
                f'"args":{{"sort_index":{pid}}}}}'
            )
        return tensor

    def _start(self, flight: _Flight, name: str, time: float, args: str = "") -> None:
        flight.open.append(name)
        self._event("B", flight, name, time, args)

    def _end(self, flight: _Flight, time: float, args: str = "") -> None:
        self._event("E", flight, flight.open.pop(), time, args)

    def _event(self, phase: str, flight: _Flight, name: str, time: float, args: str) -> None:
        flight.last = max(flight.last, time)
        where = f'"pid":{flight.tensor.pid},"tid":{flight.tid}'
        more = f',"args":{args}' if args else ""
        self._out.append(
            f'{{"ph":"{phase}","name":"{name}","ts":{self._ts(flight.last)},{where}{more}}}'
        )

    def _ts(self, time: float) -> str:
        return f"{(time - self._begin) * 1e6:.3f}"
