"""Runs the units that the ranks have agreed on."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.base.contracts import Transport
from farandole.base.types import Kind
from farandole.core.engine.check import refused
from farandole.core.engine.devices import HOST, Devices
from farandole.core.engine.execute import execute
from farandole.core.engine.fusion import Run, Unit
from farandole.core.engine.handle import Item
from farandole.core.engine.subscribers import Subscribers
from farandole.core.engine.wait_reports import WaitReports
from farandole.errors import RequestError


class UnitRunner:
    """Runs units on one transport, or on a device.

    - ``joins``: The number of completed joins.
    - ``names``: Names in use; those in a unit are released when it runs.
    - ``mean_of_present``: Whether averages count only the ranks that have not joined.
    """

    def __init__(
        self,
        transport: Transport,
        observers: Subscribers,
        wait_reports: WaitReports,
        devices: Devices,
        names: set[str],
        *,
        mean_of_present: bool,
    ) -> None:
        self.joins = 0
        self.devices = devices
        self._transport = transport
        self._observers = observers
        self._wait_reports = wait_reports
        self._names = names
        self._mean_of_present = mean_of_present

    def run(
        self, unit: Unit, items: Sequence[Item], messages: Sequence[bytes], here: Run | None
    ) -> None:
        """Run a unit and finish the handles of its ``items``. ``here``: computes the results from
        ``messages`` if they contain all elements.
        """
        entries = [item.entry for item in items]
        for item in items:
            self._names.discard(item.entry.request.name)
        if unit.error:
            for item in items:
                item.handle.fail(refused(unit.refusal, unit.error))
            return
        observers = self._observers.running
        if observers:
            # a remembered unit may have old serial numbers
            names = [item.entry.name for item in items]
            nbytes = sum(entry.buffer.data.nbytes for entry in entries)
            for observer in observers:
                observer.started(unit.kind, names, nbytes)
        size = self._transport.size
        divisor = size - len(unit.absent) if self._mean_of_present else size
        device, after = unit.requests[0].device, None
        self._wait_reports.running = items
        if here is not None:
            results = here(messages, [entry.buffer for entry in entries])
        elif device == HOST:
            results = execute(unit, entries, self._transport, divisor)
        else:
            events = list(dict.fromkeys(item.event for item in items if item.event is not None))
            try:
                results, after = self.devices.run(
                    device, events, lambda it: execute(unit, entries, it, divisor)
                )
            except RequestError as error:  # every rank raises it
                for item in items:
                    item.handle.fail(error)
                return
        self._wait_reports.running = ()
        if unit.kind is Kind.JOIN:
            self.joins += 1
        if observers:
            for observer in observers:
                observer.finished(unit.kind, names)
        for item, result in zip(items, results, strict=True):
            item.handle.finish(item.place, result, after)
