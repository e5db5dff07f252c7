"""Configuration that a process reads from its environment: ``Placement`` (its rank),
``Connection`` (its job's store) and ``Settings`` (the user's options).
"""

from farandole.job.config.placement import Connection as Connection
from farandole.job.config.placement import Placement as Placement
from farandole.job.config.settings import Settings as Settings
