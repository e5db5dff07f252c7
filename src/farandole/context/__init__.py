"""This process's place in the job: init, shutdown, rank and the rest.

The one room that assembles store, transport and engine. Without a launcher ``init()`` gives one rank and no network.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, NamedTuple

from farandole import log
from farandole.config import Settings
from farandole.context import wiring
from farandole.context.observers import Observers, note_ignored
from farandole.contracts import Transport
from farandole.engine import Engine
from farandole.errors import NotInitializedError, SettingsError
from farandole.store import StoreClient
from farandole.transports import shm


class _Place(NamedTuple):
    settings: Settings
    engine: Engine
    observers: Observers | None = None


_lock = threading.RLock()
_place: _Place | None = None
_store: StoreClient | None = None  # one for the life of the process: outcomes are reported after shutdown, too
_generation = 0  # how many times this process has initialised


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job: afterwards ``rank()``, ``size()`` and the collectives work. Does nothing when already done.

    Raises RendezvousError naming the ranks that did not come within ``--start-timeout`` seconds.
    """
    global _place, _generation
    with _lock:
        if _place is not None:
            return
        settings = Settings.from_env()
        log.configure(settings.log_level, rank=settings.rank, hide_time=settings.log_hide_time)
        if not 0 <= settings.rank < settings.size:
            raise SettingsError(f"HOROVOD_RANK={settings.rank} is not below HOROVOD_SIZE={settings.size}")
        note_ignored()
        _generation += 1
        transport = _connect(settings, f"{_generation}")
        try:
            observers = Observers(settings, _store)
        except BaseException as error:
            transport.abort(f"rank {settings.rank} could not initialise: {error}")
            transport.close()
            raise
        engine = Engine(transport, settings, observers.of(transport))
        observers.attach(engine)
        _place = _Place(settings, engine, observers)


def shutdown() -> None:
    """Leave the job. Collectives in flight fail, here and on the other ranks. ``init()`` may be called again."""
    global _place
    with _lock:
        place, _place = _place, None
    if place is not None:
        place.engine.shutdown()
        if place.observers is not None:
            place.observers.close()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to write a timeline to ``file_path`` (on rank 0). Needs HOROVOD_TIMELINE to be set, to DYNAMIC or a file.

    One that is being written is ended first; ``mark_cycles`` marks every round of agreement.
    """
    _observers().start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline; its file is complete when this returns."""
    _observers().stop_timeline()


def _observers() -> Observers:
    if _place is None or _place.observers is None:
        raise NotInitializedError
    return _place.observers


def _forget() -> None:
    """A forked child (a data loader's worker, say) is not a rank: it must neither join in nor say goodbye."""
    global _place, _store
    _place = _store = None


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget)


def is_initialized() -> bool:
    return _place is not None


def engine() -> Engine:
    """The engine of all ranks. Raises NotInitializedError before ``init()``."""
    if _place is None:
        raise NotInitializedError
    return _place.engine


def settings() -> Settings:
    """What this process was told. Raises NotInitializedError before ``init()``."""
    if _place is None:
        raise NotInitializedError
    return _place.settings


def rank() -> int:
    """This process's number among all, from 0."""
    return settings().rank


def size() -> int:
    """How many processes there are."""
    return settings().size


def local_rank() -> int:
    """This process's number among those of its host, from 0."""
    return settings().local_rank


def local_size() -> int:
    """How many processes run on this host."""
    return settings().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have this local rank, from 0."""
    return settings().cross_rank


def cross_size() -> int:
    """How many hosts have this local rank."""
    return settings().cross_size


def is_homogeneous() -> bool:
    """True if every host runs the same number of processes."""
    return settings().homogeneous


def store() -> StoreClient | None:
    """The job's store; None without a launcher."""
    return _store


def _connect(settings: Settings, scope: str) -> Transport:
    if settings.size == 1:
        if settings.store:
            _open_store(settings)  # the driver is told how this rank ends
        return shm.connect(0, 1, "", scope)
    return wiring.connect(settings, _open_store(settings), scope)


def _open_store(settings: Settings) -> StoreClient:
    global _store
    if not settings.store or not settings.secret:
        raise SettingsError(
            f"this process is rank {settings.rank} of {settings.size}, but FARANDOLE_STORE or FARANDOLE_SECRET is "
            "missing: start it with 'farandole run', or unset HOROVOD_SIZE to run one rank alone"
        )
    if _store is None:
        _store = StoreClient(settings.store, settings.secret)
        from farandole.launch import outcome

        outcome.install(_store, settings.rank)
    return _store
