"""The stall check: says which ranks stay away from which tensors and where they are, and ends the
job when told to.
"""

from farandole.core.observe.stall.check import StallCheck
from farandole.core.observe.stall.store_query import StoreQuery

__all__ = ["StallCheck", "StoreQuery"]
