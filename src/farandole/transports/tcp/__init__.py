"""The wire between hosts: a full mesh of authenticated TCP connections, two per pair of ranks.

``rendezvous`` finds the others through the store and makes the connections; ``link`` moves data over the first of each
pair, ``board`` posts notices, the reason of an abort and the goodbye over the second. A connection of the board is
idle most of the time, so its end is how a rank learns of another's death, whomever it waits for.
"""

from farandole.contracts import End
from farandole.transports.tcp.link import TcpLink
from farandole.transports.tcp.link import connect as connect


def wire(end: End) -> TcpLink:
    """See ``contracts.Wire``."""
    return connect(end.rank, end.size, end.secret, end.scope, end.store, end.timeout, end.host)
