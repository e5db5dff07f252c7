"""Signals to a rank that announce the end of its host."""

from __future__ import annotations

import os
import signal

from farandole.base.log import logger
from farandole.errors import HorovodInternalError, RendezvousError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import session
from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.signals import SignalNotices
from farandole.job.elastic.notices.sources import parse_sources
from farandole.job.report import keys

_installed: list[SignalNotices] = []


def watch(placement: Placement, connection: Connection, settings: Settings) -> None:
    """Report the signals of the setting ``preemption_notice`` to the driver from now on.

    The driver itself ends processes by SIGTERM, after it has put ``keys.ending`` into the store.
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

    notices = SignalNotices(parse_sources(settings.preemption_notice, os.environ), on_signal)
    if notices.install():
        _installed.append(notices)
    else:
        logger.warning(
            "preemption notices by signal are not watched in process %d, because init() was not"
            " called in the main thread",
            process,
        )
