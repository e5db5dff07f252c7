from farandole.compat.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from farandole.frontend.elastic import HostUpdateResult, run_fn
from farandole.frontend.state import ObjectState, State

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "run_fn",
]
