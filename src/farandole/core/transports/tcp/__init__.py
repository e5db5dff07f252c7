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
        end.rank,
        end.size,
        end.secret,
        end.scope,
        end.store,
        end.timeout,
        end.host,
        end.streams,
        end.names,
    )
