"""Checks of MXNet programs: digests of parameters, settings of optimizers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from farandole.base.digests import digest, sampled
from farandole.checks.replicas import Cures, numbers
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
