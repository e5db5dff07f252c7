"""The names of Horovod's elastic API. Elastic jobs come later: what needs them raises one error that says so."""

from __future__ import annotations

from enum import IntFlag
from typing import Any

from farandole.compat import missing, stand_in
from farandole.data import ElasticSampler

__all__ = [
    "ElasticSampler", "HostUpdateResult", "ModelStateHandler", "ObjectState", "OptimizerStateHandler",
    "SamplerStateHandler", "State", "TorchState", "get_handler_registry", "run", "run_fn", "set_handler_registry",
]  # fmt: skip


class HostUpdateResult(IntFlag):
    """How the set of hosts changed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """What a job goes on from when ranks come or go. Not available yet; neither are its subclasses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise missing(f"horovod's elastic {type(self).__name__}", "elastic")


class ObjectState(State):
    """See ``State``."""


class TorchState(ObjectState):
    """See ``State``."""


class _Handler:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise missing(f"horovod.torch.elastic's {type(self).__name__}", "elastic")


class ModelStateHandler(_Handler):
    """See ``State``."""


class OptimizerStateHandler(_Handler):
    """See ``State``."""


class SamplerStateHandler(_Handler):
    """See ``State``."""


run = stand_in("hvd.elastic.run", "elastic")
run_fn = stand_in("horovod.common.elastic.run_fn", "elastic")
get_handler_registry = stand_in("horovod.torch.elastic.state.get_handler_registry", "elastic")
set_handler_registry = stand_in("horovod.torch.elastic.state.set_handler_registry", "elastic")
