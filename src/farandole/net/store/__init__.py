"""The job's store: a small key-value store for rendezvous, with server and client.

After the handshake, a request is one frame (verb, seconds, key), followed by a frame with the value
if the verb is SET or SWAP.
"""

from farandole.net.store.client import StoreClient as StoreClient
from farandole.net.store.client import reach as reach
from farandole.net.store.frames import Value as Value
from farandole.net.store.server import StoreServer as StoreServer
