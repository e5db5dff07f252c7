from farandole.compat.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from farandole.core.api.elastic import HostUpdateResult, run_fn
from farandole.core.api.state import ObjectState, State

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "run_fn",
]
