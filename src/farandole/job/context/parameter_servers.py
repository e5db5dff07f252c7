"""The parameter servers of this session, and the weights that this rank publishes to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.job.context import session

if TYPE_CHECKING:
    from farandole.core.gossip.peer_group import PeerServer
    from farandole.core.ps.client import Servers
    from farandole.core.ps.saved_states import LoadedStates, SavedOptimizer
    from farandole.job.context.server_access import ServerAccess

_access: ServerAccess | None = None  # this session's access, once a strategy needs servers
_loaded: LoadedStates | None = None  # from the commit on disk from which the job continues
_kept: list[ServerAccess] = []  # from sessions that ended while an exception was handled


def servers() -> Servers:
    """Return the job's parameter servers; the first request of a rank starts them.

    Raises SettingsError in a process without a launcher, and RendezvousError if they do not start.
    """
    found = access().open(session.store())
    if _loaded is not None:
        found.loaded = _loaded
    return found


def peer_server() -> PeerServer:
    """Return the server that publishes this rank's weights to other ranks.

    Raises SettingsError in a process without a launcher.
    """
    return access().peer(session.store())


def leave_servers() -> None:
    """Mark this rank as out of data.

    Ranks that exchange through parameter servers do not wait for this rank until it pushes again.
    """
    if session.size() > 1 and (store := session.store()) is not None:
        access().leave(store)


def return_to_servers() -> None:
    """Mark this rank as possibly having data again, after all ranks have joined."""
    if session.size() > 1 and (store := session.store()) is not None:
        access().revoke_leave(store)


def commit_to_servers(number: int) -> None:
    """Let the parameter servers keep the states of their optimizers for commit ``number``.

    Raises HorovodInternalError if a server is lost.
    """
    if _access is not None:
        _access.commit(number)


def server_states(number: int) -> list[SavedOptimizer]:
    """Return the states of the servers' optimizers at commit ``number``; empty without servers.

    Raises OSError or HorovodInternalError if a server is lost, and DataError if it no longer has
    the states.
    """
    return [] if _access is None else _access.optimizer_states(number)


def load_server_states(commit: int, states: list[SavedOptimizer] | None) -> None:
    """Let the parameter servers begin with the states of their optimizers in the commit on disk
    with number ``commit``. ``states``: None if it has none.
    """
    global _loaded
    # imported here because a plain job has no servers
    from farandole.core.ps.saved_states import LoadedStates

    _loaded = LoadedStates(commit, states)


def follows_centre() -> bool:
    """Return whether an optimizer of this session follows an asynchronous centre of parameter
    servers, which is never rolled back.
    """
    return _access is not None and _access.follows_centre


def access() -> ServerAccess:
    """Return this session's access to servers; the first call creates it."""
    global _access
    # imported here because a plain job has no servers
    from farandole.job.context.server_access import ServerAccess

    with session.lock:
        if _access is None:
            here = session.current()
            _access = ServerAccess(
                here.placement,
                here.settings,
                session.session_id(),
                here.connection.member >= 0,
            )
        return _access


def take_access() -> ServerAccess | None:
    """Remove and return the access of an ending session; None if there is none."""
    global _access
    ended = _access
    _access = None
    return ended


def keep_until_exit(ended: ServerAccess) -> None:
    """Keep an ended session's servers running until the process ends, when its success is known."""
    _kept.append(ended)


def close_kept(*, failed: bool) -> None:
    """Close the servers of sessions that ended while an exception was handled."""
    while _kept:
        _kept.pop().close(failed)


def forget_in_child() -> None:
    """Forget the servers in a forked process: they belong to its parent."""
    global _access
    _access = None
    _kept.clear()
