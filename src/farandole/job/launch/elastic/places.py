"""The hosts of an elastic job as the driver sees them. It starts processes one by one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from farandole.base.types import Slot
from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import HostDiscovery
from farandole.job.elastic.membership import Member
from farandole.job.elastic.notices.notice import Notice
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import Worker
from farandole.job.launch.processes import start_ranks
from farandole.net.interfaces import is_here
from farandole.net.store import StoreServer

if TYPE_CHECKING:
    from farandole.job.elastic.notices.watch import NoticeWatch

OnNotice = Callable[[str, Notice], None]


class Places(Protocol):
    """The hosts on which processes can be started while the job runs.

    ``remote``: whether they may be other machines.
    """

    remote: bool
    name: ClassVar[str]  # of the launcher

    def listen(self, secret: str) -> StoreServer:
        """Return the job's store, listening where the hosts can reach it."""

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> Worker:
        """Start the process ``member`` with ``command`` and the variables ``env``, and return it.

        Raises SettingsError if it cannot be started.
        """

    def watch_notices(self, sources: str, on_notice: OnNotice) -> None:
        """Watch the hosts of all processes started from now on for preemption notices.

        ``sources``: the setting ``preemption_notice``. ``on_notice``: called on any thread with the
        host and the notice.
        """

    def close(self) -> None:
        """Release all resources, after the processes have ended."""


class FindingPlaces(Places, Protocol):
    """Places of a cluster that finds its hosts itself."""

    def describe(self) -> str:
        """Return one line for the user about the processes' places."""

    def discovery(self) -> HostDiscovery:
        """Return the discovery of the hosts. Used after ``await_slots``."""

    def await_slots(self) -> None:
        """Wait for the slots with which the job starts. Called after ``listen``.

        Raises RendezvousError if they are not available in time.
        """


class LocalPlaces:
    """This machine, under any of its names.

    Each process has its own reaper, which ends its leftover processes.
    """

    remote = False
    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self._sources = ""
        self._on_notice: OnNotice
        self._watches: dict[str, NoticeWatch] = {}  # by name of this machine

    def listen(self, secret: str) -> StoreServer:
        return StoreServer(secret)

    def watch_notices(self, sources: str, on_notice: OnNotice) -> None:
        self._sources, self._on_notice = sources, on_notice

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> Worker:
        if not is_here(member.host.rpartition("@")[2]):
            raise SettingsError(
                f"{member.host!r} is not a name of this machine. Start the job with --launcher ssh"
                " if hosts that are added later are other machines"
            )
        self._watch(member.host)
        base = launcher_env.inherited(os.environ)
        return start_ranks([slot_of(member)], command, {**base, **env})[0]

    def _watch(self, host: str) -> None:
        if not self._sources or host in self._watches:
            return
        # Imported here because most jobs have no sources of notices.
        from farandole.job.elastic.notices.watch import watch_host

        report = functools.partial(self._on_notice, host)
        self._watches[host] = watch_host(host, self._sources, report)

    def close(self) -> None:
        """End the watches; the driver has already ended the processes."""
        for watch in self._watches.values():
            watch.close()


def slot_of(member: Member) -> Slot:
    """Return the slot that identifies a process for the driver: its number takes the place of a
    rank.
    """
    return Slot(member.process, member.host, member.local_rank, 1, 0, 1, 1)
