"""The hosts of an elastic job as the driver sees them: it starts processes one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from farandole.base.types import Slot
from farandole.errors import SettingsError
from farandole.job.elastic.membership import Member
from farandole.job.launch import launcher_env
from farandole.job.launch.contract import Worker
from farandole.job.launch.processes import start_ranks
from farandole.net.interfaces import is_here
from farandole.net.store import StoreServer


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

    def close(self) -> None:
        """Release everything, after the processes have ended."""


class LocalPlaces:
    """This machine, under any of its names.

    Each process has a reaper of its own, which ends the processes that it leaves behind.
    """

    remote = False
    name: ClassVar[str] = "local"

    def listen(self, secret: str) -> StoreServer:
        return StoreServer(secret)

    def start(self, member: Member, command: Sequence[str], env: Mapping[str, str]) -> Worker:
        if not is_here(member.host.rpartition("@")[2]):
            raise SettingsError(
                f"{member.host!r} is not a name of this machine. Start the job with --launcher ssh"
                " if hosts that come later are other machines"
            )
        base = launcher_env.inherited(os.environ)
        return start_ranks([slot_of(member)], command, {**base, **env})[0]

    def close(self) -> None:
        """Take no action: the driver has already ended the processes."""


def slot_of(member: Member) -> Slot:
    """Return the slot that identifies a process for the driver: its number takes the place of a
    rank.
    """
    return Slot(member.process, member.host, member.local_rank, 1, 0, 1, 1)
