"""The state of an elastic job on TensorFlow, and the loop that uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from farandole.base.digests import whole_digest
from farandole.core.api.arrays import broadcast_arrays
from farandole.core.api.elastic import run
from farandole.core.api.keras_version import keras_of
from farandole.core.api.objects import broadcast_object
from farandole.core.api.state import ObjectState, check_fit
from farandole.job import context
from farandole.job.plugins import registry
from farandole.tensorflow import graph
from farandole.tensorflow.gradients import names_of

if TYPE_CHECKING:
    from farandole.base.types import Array

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(ObjectState):
    """The state of variables, and of plain values as attributes (``epoch=0, batch=0``).

    ``variables``: by default the global variables of the graph. ``session``: the session of v1
    variables; by default the default session. ``kwargs``: the plain values. Nothing is sent before
    ``sync()``. Raises ValueError in a graph without a session.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        in_graph = not tf.executing_eagerly()
        self.session = session or (tf.compat.v1.get_default_session() if in_graph else None)
        if in_graph and self.session is None:
            raise ValueError(
                "there is no default session. Pass TensorFlowState(session=...), or create it"
                " inside a session"
            )
        self._copies: list[Array] = []
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        if self._copies:
            self._load(self._copies)
        super().restore()

    def sync(self) -> None:
        if self.variables:
            self._load(broadcast_arrays(self._values_of(), names_of(self.variables)))
        received = self._receive()
        self._save_variables()
        self._adopt(received)

    def replicas(self) -> Mapping[str, Any]:
        """Return the trained variables; none in a graph's session. Other variables may be
        statistics of each rank's own data.
        """
        if self.session is not None:
            return {}
        found = [each for each in self.variables if getattr(each, "trainable", False)]
        return {
            f"{number}.{name}": each
            for number, (name, each) in enumerate(zip(names_of(found), found, strict=True))
        }

    def digest_of_replica(self, value: Any) -> int:
        return whole_digest(graph.array(tf.convert_to_tensor(value)))

    def bytes_of_replica(self, value: Any) -> Any:
        return super().bytes_of_replica(graph.array(tf.convert_to_tensor(value)))

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        here = self.replicas()
        for name, value in values.items():
            array = graph.array(tf.convert_to_tensor(here[name]))
            here[name].assign(value.view(array.dtype).reshape(array.shape))

    def saved_values(self) -> Any:
        return self._copies, self._saved

    def use_saved_values(self, saved: Any) -> None:
        copies, values = saved
        check_fit(self._copies, copies)
        super().use_saved_values(values)
        self._copies = copies

    def _save_variables(self) -> None:
        self._copies = [np.array(value) for value in self._values_of()]

    def _values_of(self) -> list[Any]:
        if self.session is not None:
            return list(self.session.run(self.variables))
        return [graph.array(tf.convert_to_tensor(variable)) for variable in self.variables]

    def _load(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            if self.session is not None:
                variable.load(value, self.session)
            else:
                variable.assign(value)


def TensorFlowKerasState(
    model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
) -> Any:
    """Return the state of a model, its optimizers and plain values. Arguments are the same as in
    ``farandole.keras.elastic.KerasState``, for a model of Keras 3 or Keras 2.

    Raises ValueError if the model is not built.
    """
    return registry.load("state", keras_of(model))(model, optimizer, backend, **kwargs)
