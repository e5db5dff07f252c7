"""Subscribers: for each event of the engine, the observers that override its method."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.base.contracts import Observer, Transport


class Subscribers:
    """The observers of one engine, by event. An event without observers costs only the test of an
    empty list. ``running``: observers of ``started`` and ``finished``; ``every``: one of them needs
    all of these events.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.all: tuple[Observer, ...] = ()
        self._set(tuple(observers))

    def add(self, observer: Observer) -> None:
        self._set((*self.all, observer))

    def remove(self, observer: Observer) -> None:
        """Remove an observer. Raises ValueError if it does not observe this engine."""
        if observer not in self.all:
            raise ValueError(f"{observer!r} is not an observer of this engine")
        self._set(tuple(other for other in self.all if other is not observer))

    def report_parts_of(self, transport: Transport) -> None:
        """Report the steps inside the transport's collectives, if an observer listens."""
        if self.part:
            transport.report_parts(self._notify_part)

    def _notify_part(self, name: str, begin: float, end: float) -> None:
        for observer in self.part:
            observer.part(name, begin, end)

    def _set(self, observers: tuple[Observer, ...]) -> None:
        self.all = observers
        self.agreed = self._overriding("agreed")
        self.settled = self._overriding("settled")
        self.running = self._overriding("started", "finished")
        self.every = any(observer.every for observer in self.running)
        self.part = self._overriding("part")
        self.transferred = self._overriding("transferred")
        self.waiting = self._overriding("waiting")

    def _overriding(self, *events: str) -> tuple[Observer, ...]:
        return tuple(
            observer
            for observer in self.all
            if any(
                getattr(type(observer), event) is not getattr(Observer, event) for event in events
            )
        )
