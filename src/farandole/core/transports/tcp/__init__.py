"""The wire between hosts: authenticated TCP connections, one for data between any two ranks (as
many as --tcp-streams says), one for the board between neighbours in its ``overlay``.

``rendezvous`` finds the others through the store and makes the connections; ``link`` moves data
over the former (by ``stripes``, where they are several), ``board`` posts notices, the reason of an
abort and the goodbye over the latter. A connection of the board is idle most of the time, so its
end is how ranks learn of another's death, whomever they wait for.
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
    )
