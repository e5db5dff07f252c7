"""The transport between hosts: authenticated TCP connections.

Any two ranks have ``--tcp-streams`` data connections; neighbours in the ``overlay`` have one board
connection. ``rendezvous`` finds the other ranks through the store and connects them. ``link`` moves
data over the data connections (over several with ``stripes``). ``board`` carries notices, the
reason of an abort, and the goodbye. A board connection is mostly idle, so its end reveals the death
of a rank to all other ranks, even while they wait for a third rank.
"""

from farandole.base.contracts import End
from farandole.core.transports.tcp.link import TcpLink
from farandole.core.transports.tcp.link import connect as connect


def wire(end: End) -> TcpLink:
    """See ``contracts.Wire``."""
    return connect(
        rank=end.rank,
        size=end.size,
        secret=end.secret,
        scope=end.scope,
        store=end.store,
        timeout=end.timeout,
        host=end.host,
        streams=end.streams,
        names=end.names,
        check=end.check,
    )
