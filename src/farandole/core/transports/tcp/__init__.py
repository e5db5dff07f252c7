"""The transport between hosts: authenticated TCP connections.

Any two ranks have ``--tcp-streams`` connections for data; neighbours in the ``overlay`` have one
for the board. ``rendezvous`` finds the other ranks through the store and connects them. ``link``
moves data over the data connections (over several with ``stripes``). ``board`` carries notices, the
reason of an abort, and the goodbye. A board connection is idle most of the time, so its end reveals
the death of a rank to all others, whichever rank they are waiting for.
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
