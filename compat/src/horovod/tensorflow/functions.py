from farandole.compat.internals import (
    make_broadcast_group as _make_broadcast_group_fn,  # noqa: F401
)
from farandole.tensorflow import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
