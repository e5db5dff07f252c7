"""The handshake for every socket of a job, and the frames that follow it.

- ``proof``: Both ends prove that they know the job's secret.
- ``tls``: Encryption of the handshake and the frames, if the job uses it, with a certificate made
  from the secret (``certificate``).
- ``session``: Numbered frames, authenticated with keys of the connection.
- ``newcomers``: Connections that are not authenticated yet.
"""

from farandole.net.handshake.newcomers import Newcomers as Newcomers
from farandole.net.handshake.newcomers import hang_up as hang_up
from farandole.net.handshake.proof import MAC as MAC
from farandole.net.handshake.proof import NONCE as NONCE
from farandole.net.handshake.proof import authenticate as authenticate
from farandole.net.handshake.proof import derive as derive
from farandole.net.handshake.proof import encrypted as encrypted
from farandole.net.handshake.proof import new_secret as new_secret
from farandole.net.handshake.session import ANY_SIZE as ANY_SIZE
from farandole.net.handshake.session import HEAD as HEAD
from farandole.net.handshake.session import TAG as TAG
from farandole.net.handshake.session import Direction as Direction
from farandole.net.handshake.session import Session as Session
from farandole.net.handshake.session import Stream as Stream
from farandole.net.handshake.session import TamperedError as TamperedError
