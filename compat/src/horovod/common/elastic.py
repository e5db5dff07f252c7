from farandole.compat.elastic import HostUpdateResult, ObjectState, State, run_fn
from farandole.compat.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]
