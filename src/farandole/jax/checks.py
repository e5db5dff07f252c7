"""The checks of JAX programs: digests of the parameters of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farandole.base.digests import digest, stride
from farandole.checks.replicas import Cures

CURES = Cures(
    "params = hvd.broadcast_parameters(params, root_rank=0)",
    "data[hvd.rank() :: hvd.size()]",
    state="state = hvd.broadcast_parameters(state, root_rank=0)",
    reduced="hvd.value_and_grad or hvd.grad",
)


class ArraysReplica:
    """A ``checks.agreement.Replica``. ``arrays``: parameters, or their ``sample``. JAX arrays are
    copied only for a comparison.
    """

    patient = False

    def __init__(
        self,
        arrays: Sequence[Any],
        names: Sequence[str],
        cures: Cures = CURES,
        reported: Collection[str] = (),
    ) -> None:
        self.cures = cures
        self.reported = reported
        self._arrays = arrays
        self._names = names

    def names(self) -> Sequence[str]:
        return self._names

    def weights(self) -> list[int]:
        return [digest(np.asarray(_sampled(array))) for array in self._arrays]

    def settings(self) -> Mapping[str, str]:
        """Return nothing: the settings are inside the optimizer's functions."""
        return {}


def comparable(parameters: Sequence[Any], gradients: Sequence[Any]) -> bool:
    """Return whether the parameters are current values, and not constants of a compiled program."""
    known = [getattr(parameter, "dtype", None) for parameter in parameters]
    if not known or not all(
        dtype is not None and jnp.issubdtype(dtype, jnp.number) for dtype in known
    ):
        return False
    traced = any(isinstance(gradient, jax.core.Tracer) for gradient in gradients)
    return all(isinstance(parameter, jax.core.Tracer) == traced for parameter in parameters)


def sample(parameters: Sequence[Any]) -> list[Any]:
    """Return the elements of each parameter that are compared."""
    return [_sampled(parameter) for parameter in parameters]


def _sampled(array: Any) -> Any:
    return array.reshape(-1)[:: stride(array.size)]
