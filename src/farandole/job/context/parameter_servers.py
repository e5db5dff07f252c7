"""The parameter servers of this session, and the weights that this rank publishes to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.job.context import session

if TYPE_CHECKING:
    from farandole.core.gossip.peer_group import PeerServer
    from farandole.core.ps.client import Servers
    from farandole.job.context.server_access import ServerAccess

_access: ServerAccess | None = None  # of this session, once a strategy needs servers
_kept: list[ServerAccess] = []  # of sessions that ended while an exception was handled


def servers() -> Servers:
    """The job's parameter servers; they are started when the first rank asks. Raises SettingsError
    in a process that no launcher started, RendezvousError if they do not come.
    """
    return access().open(session.store())


def peer_server() -> PeerServer:
    """What this rank shows of its weights to others. Raises SettingsError in a process that no
    launcher started.
    """
    return access().peer(session.store())


def leave_servers() -> None:
    """This rank has no more data: ranks that exchange by parameter servers do not wait for it until
    it pushes again.
    """
    if session.size() > 1 and (store := session.store()) is not None:
        access().leave(store)


def return_to_servers() -> None:
    """All ranks have joined: this one may have data again."""
    if session.size() > 1 and (store := session.store()) is not None:
        access().come_back(store)


def access() -> ServerAccess:
    """Return the access of this session to servers; the first call makes it."""
    global _access
    from farandole.job.context.server_access import ServerAccess  # here: a plain job has none

    with session.lock:
        if _access is None:
            here = session.current()
            _access = ServerAccess(here.placement, here.settings, session.session_id())
        return _access


def take_access() -> ServerAccess | None:
    """Return the access of a session that ends, for the last time; None if it has none."""
    global _access
    ended = _access
    _access = None
    return ended


def keep_until_exit(ended: ServerAccess) -> None:
    """Let servers of an ended session run on until the process ends: then it is known whether it
    has failed.
    """
    _kept.append(ended)


def close_kept(*, failed: bool) -> None:
    """Close the servers of sessions that ended while an exception was handled."""
    while _kept:
        _kept.pop().close(failed)


def forget_in_child() -> None:
    """Leave the servers to the parent of this forked process."""
    global _access
    _access = None
    _kept.clear()
