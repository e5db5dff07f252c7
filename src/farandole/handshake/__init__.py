"""One handshake for every socket of a job, and the frames after it.

``proof``: both ends prove that they know the job's secret. ``tls``: encrypts that and all that
follows, if the job wants it, with a certificate made from the secret (``certificate``).
``session``: the frames after that, numbered and authenticated with keys of this one connection.
``newcomers``: connections that have proved nothing yet.
"""

from farandole.handshake.newcomers import Newcomers as Newcomers
from farandole.handshake.newcomers import hang_up as hang_up
from farandole.handshake.proof import MAC as MAC
from farandole.handshake.proof import NONCE as NONCE
from farandole.handshake.proof import authenticate as authenticate
from farandole.handshake.proof import derive as derive
from farandole.handshake.proof import encrypted as encrypted
from farandole.handshake.proof import new_secret as new_secret
from farandole.handshake.session import ANY_SIZE as ANY_SIZE
from farandole.handshake.session import HEAD as HEAD
from farandole.handshake.session import TAG as TAG
from farandole.handshake.session import Direction as Direction
from farandole.handshake.session import Session as Session
from farandole.handshake.session import Stream as Stream
from farandole.handshake.session import TamperedError as TamperedError
