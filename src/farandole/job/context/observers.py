"""The observers of this process's engines: the gradient check and, if enabled, stall check,
timeline and autotune.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Observer, Transport, Waiting
from farandole.base.host import clock_name
from farandole.base.log import logger
from farandole.core.engine import Engine
from farandole.core.observe.exchanges import ExchangeCounts
from farandole.core.observe.stall import StallCheck, StoreQuery
from farandole.errors import SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.horovod import built_for
from farandole.job.config.output_files import DYNAMIC
from farandole.job.config.rank_variables import RUN_VARIABLE
from farandole.job.report import keys
from farandole.net.store import StoreClient

if TYPE_CHECKING:
    from farandole.core.observe.timeline import Timeline
    from farandole.job.tracking.sampler import Sampler

# Maximum seconds before a rank connects to the store for the stall check.
_LONGEST_DELAY = 5.0
_NOT_ENABLED = "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."


class Observers:
    """The observers of a session, from ``init`` to ``shutdown``."""

    def __init__(
        self,
        placement: Placement,
        connection: Connection,
        settings: Settings,
        client: StoreClient | None,
        scope: str = "",
    ) -> None:
        """``scope`` separates this session's entries in the store from those after another
        ``init``. Raises SettingsError if a file cannot be written.
        """
        self._settings = settings
        self._placement = placement
        self.timeline: Timeline | None = None
        self.exchange_counts = ExchangeCounts()
        self._client = client
        self._tuner = self._tuner_of(placement, settings)
        if settings.timeline:
            # imported here because most jobs write none
            from farandole.core.observe.timeline import (
                Timeline,
                ahead,
            )

            clock = ahead(client.clock, clock_name()) if client is not None else 0.0
            self.timeline = Timeline(placement.rank, placement.size, clock)
            if settings.timeline != DYNAMIC:
                self._start_timeline(settings.timeline, settings.timeline_mark_cycles, on=True)

        self._stall_checks: list[StallCheck] = []
        self._sampler: Sampler | None = None
        if os.environ.get(RUN_VARIABLE):
            # imported here because most jobs leave no run
            from farandole.job.tracking import sampler

            self._sampler = sampler.begin(placement.rank, self._waiting)
        self._stack_query: StoreQuery | None = None
        if client is not None and placement.size > 1 and not settings.stall_check_disable:
            soon = min(
                settings.stall_warning_seconds, settings.stall_shutdown_seconds or _LONGEST_DELAY
            )
            self._stack_query = StoreQuery(
                client,
                lambda: StoreClient(connection.store, connection.secret),
                scope,
                placement.rank,
                placement.size,
                min(soon / 4, _LONGEST_DELAY),
                self._waiting,
            )

    def _waiting(self) -> list[Waiting]:
        """Return the waiting collectives of this rank, over all engines."""
        return [wait for check in list(self._stall_checks) for wait in check.now()]

    def of(
        self, transport: Transport, ranks: Sequence[int] = (), prefix: str = ""
    ) -> list[Observer]:
        """Return the observers of one engine.

        For a process set's engine, ``ranks`` are its ranks in the job, and ``prefix`` precedes
        names in the timeline, where two sets may have tensors with the same name.
        """
        observers: list[Observer] = [self.exchange_counts]
        if self._sampler is not None:
            observers.append(self._sampler.times)
        if not self._settings.stall_check_disable:
            check = StallCheck(self._settings, transport.rank, ranks, self._stack_query)
            self._stall_checks.append(check)
            observers.append(check)
        if self._client is not None and self._placement.generation:
            # imported here because most jobs have a fixed size
            from farandole.job.context.lost_members import LostMemberCheck

            observers.append(LostMemberCheck(self._client, self._placement))
        if self.timeline is not None:
            observers.append(self.timeline.of(wire_name(transport), ranks, prefix))
        return observers

    def attach(self, engine: Engine) -> None:
        """Attach the tuner and the sampler to ``engine``, the engine of all ranks."""
        if self._sampler is not None:
            self._sampler.engine = engine
        if self._tuner is not None:
            self._tuner.attach(engine)
            engine.observers.add(self._tuner)

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Start the timeline at ``path`` on rank 0, and at ``path.rank<N>`` on other ranks if
        they write one.
        """
        if self.timeline is None:
            raise SettingsError(_NOT_ENABLED)
        self._start_timeline(path, mark_cycles, on=False)

    def _start_timeline(self, path: str, mark_cycles: bool, *, on: bool) -> None:
        """Start the timeline. ``on`` continues the file of an earlier ``init``."""
        rank = self._placement.rank
        if self.timeline is None or (rank and not self._settings.timeline_all_ranks):
            return
        path = f"{path}.rank{rank}" if rank else path
        self.timeline.start(path, mark_cycles=mark_cycles, on=on and self._begun(path))

    def _begun(self, path: str) -> bool:
        """Return whether this rank has begun the file earlier in this job, and record that it has
        now.

        The record also covers other programs of the rank, because a shell script may run several.
        """
        path = os.path.abspath(path)
        if self._client is None:
            before = path in _begun
            _begun.add(path)
            return before
        key = keys.begun(self._placement.rank, path)
        before = self._client.try_get(key) is not None
        self._client.set(key, b"")
        return before

    def stop_timeline(self) -> None:
        if self.timeline is None:
            raise SettingsError(_NOT_ENABLED)
        self.timeline.stop()

    def _tuner_of(self, placement: Placement, settings: Settings) -> Any:
        """Return rank 0's tuner if autotuning is enabled, else None."""
        if not settings.autotune or placement.rank:
            return None
        if placement.size == 1:
            logger.info("--autotune has no effect on a single rank")
            return None
        from farandole.core.observe.autotune import Tuner

        return Tuner(
            settings, on=bool(settings.autotune_log) and self._begun(settings.autotune_log)
        )

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        if self._stack_query is not None:
            self._stack_query.close()
        if self.timeline is not None:
            self.timeline.stop()
        if self._tuner is not None:
            self._tuner.close()


def wire_name(transport: Any) -> str:
    """Return the transport's name in activities: SHM, TCP, HIERARCHICAL, etc."""
    carrier = getattr(transport, "link", transport)
    module = type(carrier).__module__.split(".")
    return (
        module[module.index("transports") + 1] if "transports" in module else type(carrier).__name__
    )


def note_ignored() -> None:
    """Log once which variables of Horovod's installer are ignored, because nothing is compiled
    here.
    """
    global _noted
    names = [] if _noted else built_for(os.environ)
    _noted = True
    if names:
        logger.info("ignored, because nothing is compiled: %s", ", ".join(names))


_noted = False
_begun: set[str] = set()  # timeline files begun by a process without a store
