"""Configuration that a process reads from its environment: ``Placement`` (who it is),
``Connection`` (how it reaches its job) and ``Settings`` (what the user chose).
"""

from farandole.job.config.placement import Connection as Connection
from farandole.job.config.placement import Placement as Placement
from farandole.job.config.settings import Settings as Settings
