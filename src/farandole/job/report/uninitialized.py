"""Detection of ranks that train without ``init()``: each then trains a separate model.

PyTorch's steps are seen by a hook (``job.plugins.autoload``) and reported at the first one. Other
frameworks that a function has loaded are reported to the driver when the function has returned.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.report import keys

if TYPE_CHECKING:
    from farandole.job.report.reporter import ReportStore

# Frameworks without a hook, by module. Keras comes first, because it loads one of the others.
FRAMEWORKS = {"keras": "Keras", "tensorflow": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}

_has_stepped = False  # with PyTorch


def after_step() -> None:
    """Report PyTorch's first optimizer step of this process if ``init()`` has not been called.

    Nothing is reported by ranks that use torch.distributed, or with ``--check off``.
    """
    global _has_stepped
    _has_stepped = True
    size = Placement.from_env().size
    if size == 1 or has_joined() or _is_distributed() or Settings.from_env().check == "off":
        return
    rank = Placement.from_env().rank
    if rank == 0:
        sys.stderr.write(f"farandole: {text(size, 'PyTorch')}\n")
        sys.stderr.flush()
    connection = Connection.from_env()
    if rank or not connection.store:
        return
    from farandole.net.store import StoreClient  # imported here because correct jobs do not need it

    try:
        client = StoreClient(connection.store, connection.secret, timeout=2.0)
        client.set(keys.UNINITIALIZED, b"")
        client.close()
    except (HorovodInternalError, RendezvousError, AuthenticationError, OSError):
        pass  # the driver would only repeat the message at the end


def after_function(client: ReportStore) -> None:
    """Report to the driver which framework the function has loaded without ``init()``."""
    found = next((title for name, title in FRAMEWORKS.items() if name in sys.modules), "")
    if found and not _has_stepped and not has_joined() and not _is_distributed():
        client.set(keys.UNINITIALIZED, found.encode())


def text(size: int, framework: str) -> str:
    """Return the message for a job of ``size`` ranks."""
    return (
        f"no rank has called hvd.init(): the {size} ranks of this job train {size} separate models"
        f" with {framework}.\nTo train one model, call hvd.init() and use"
        " hvd.DistributedOptimizer (see docs/start.md).\n--check off hides these lines."
    )


def has_joined() -> bool:
    """Return whether this process has called ``init()``, now or earlier."""
    session: Any = sys.modules.get("farandole.job.context.session")
    return session is not None and session.has_begun()


def _is_distributed() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    return (
        distributed is not None and distributed.is_available() and distributed.is_initialized()
    ) or "TF_CONFIG" in os.environ
