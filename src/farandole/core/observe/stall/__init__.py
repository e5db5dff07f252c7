"""The stall check: reports the missing ranks of a collective and their positions in the program,
and ends the job after the configured time.
"""

from farandole.core.observe.stall.check import StallCheck
from farandole.core.observe.stall.store_query import StoreQuery

__all__ = ["StallCheck", "StoreQuery"]
