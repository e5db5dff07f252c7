"""Preemption notices, as a rank sends and receives them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from farandole.base.log import logger
from farandole.errors import HorovodInternalError, RendezvousError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import membership, session
from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.signals import SignalNotices
from farandole.job.elastic.notices.sources import parse_sources
from farandole.job.report import keys

_FOREVER = 1e8  # seconds
_installed: list[SignalNotices] = []


def watch(placement: Placement, connection: Connection, settings: Settings) -> None:
    """Report the signals of the setting ``preemption_notice`` to the driver from now on, and follow
    the driver's request to write the last commit.

    The driver itself ends processes by SIGTERM, after setting ``keys.ending`` in the store.
    """
    if _installed:
        return
    process = connection.member
    client = session.open_store(placement, connection)

    def on_signal(number: int) -> bool:
        try:
            if client.try_get(keys.ending(process)) is not None:
                return False
            notice = Notice(signal.Signals(number).name)
            client.set(keys.leaving(process), notice.to_bytes())
        except (HorovodInternalError, RendezvousError, OSError):  # the driver has ended
            return False
        return True

    def await_rescue() -> None:
        with contextlib.suppress(HorovodInternalError, RendezvousError, OSError):
            client.get(keys.RESCUE, _FOREVER)
            if session.takes_part():
                for rescue in membership.rescues:
                    rescue()
                if session.placement().rank == 0:
                    client.set(keys.rescued(process), b"")

    threading.Thread(target=await_rescue, name="farandole-rescue", daemon=True).start()
    notices = SignalNotices(parse_sources(settings.preemption_notice, os.environ), on_signal)
    if notices.install():
        _installed.append(notices)
    else:
        logger.warning(
            "preemption notices by signal are not watched in process %d, because init() was not"
            " called in the main thread",
            process,
        )
