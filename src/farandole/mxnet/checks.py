"""Checks of MXNet programs: digests of parameters, settings of optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from farandole.base.digests import combined, digest, sampled
from farandole.checks.no_exchange import NoExchange
from farandole.checks.replicas import Cures, numbers
from farandole.job import context
from farandole.mxnet.binding import readable

CURES = Cures(
    "hvd.broadcast_parameters(net.collect_params(), root_rank=0)",
    "mx.gluon.data.DataLoader(dataset.shard(hvd.size(), hvd.rank()), ...)",
)
_SETTINGS = (
    "momentum",
    "wd",
    "beta1",
    "beta2",
    "epsilon",
    "gamma1",
    "gamma2",
    "clip_gradient",
    "rescale_grad",
)


class TrainerReplica:
    """A ``checks.agreement.Replica``: the parameters that a gluon trainer exchanges together."""

    cures = CURES
    patient = False
    reported: Collection[str] = ()

    def __init__(self, optimizer: Any, named: Sequence[tuple[str, Any]]) -> None:
        self._optimizer = optimizer
        self._named = named

    def names(self) -> Sequence[str]:
        return [name for name, _ in self._named]

    def weights(self) -> list[int]:
        return [_digest(parameter) for _, parameter in self._named]

    def settings(self) -> Mapping[str, str]:
        known = {name: getattr(self._optimizer, name, None) for name in _SETTINGS}
        return numbers({"learning_rate": self._optimizer.learning_rate, **known})


def _digest(parameter: Any) -> int:
    if parameter.grad_req == "null" or parameter._stype != "default":
        return 0
    values, dtype = readable(parameter.list_data()[0])
    return digest(np.array(sampled(values))) if dtype.is_float else 0


# Trainers without exchanges.

_watches: weakref.WeakKeyDictionary[Any, NoExchange] = weakref.WeakKeyDictionary()


def watch_trainers(distributed: type) -> None:
    """Count the steps of gluon trainers other than ``distributed``."""
    original = mx.gluon.Trainer.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not isinstance(self, distributed) and context.takes_part() and context.size() > 1:
            _watch_of(self).step_ended(lambda: self)
        return result

    mx.gluon.Trainer.step = step


def _watch_of(trainer: Any) -> NoExchange:
    if trainer not in _watches:
        _watches[trainer] = NoExchange(
            lambda one: combined([_digest(parameter) for parameter in one._params]),
            lambda one: sum(int(np.prod(parameter.shape)) for parameter in one._params),
            f"a {type(trainer).__name__} took",
            "replace it by hvd.DistributedTrainer(net.collect_params(), optimizer)",
        )
        _watches[trainer].begin()
    return _watches[trainer]
