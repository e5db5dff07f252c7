"""Moving the weights of a model between rank 0 and the ranks with its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from farandole.core.api.objects import broadcast_object
from farandole.job.context import ProcessSet
from farandole.keras.constants import renew
from farandole.keras.pipeline.messages import Stages, Topic
from farandole.keras.weights import numpy_of

Values = list[list[Any]]  # arrays, for each of several layers


class Weights:
    """The weights of this rank's layers."""

    def __init__(
        self, layers: Sequence[Any], counts: Sequence[int], stages: Stages, replicas: ProcessSet
    ) -> None:
        """``counts``: number of layers per stage; ``replicas``: the ranks with this stage."""
        self._layers, self._counts, self._stages, self._replicas = (
            list(layers),
            list(counts),
            stages,
            replicas,
        )

    def deal(self, layers: Sequence[Any] | None) -> None:
        """Overwrite the weights of all ranks from ``layers``: the layers of the whole
        model, on rank 0. All ranks call this.
        """
        mine = self._dealt(layers) if self._replicas.rank() == 0 else []
        root = (self._replicas.ranks or [0])[0]
        values: Values = broadcast_object(mine, root, process_set=self._replicas)
        for layer, each in zip(self._layers, values, strict=True):
            set_weights(layer, each)

    def _dealt(self, layers: Sequence[Any] | None) -> Values:
        """Return this rank's part of the weights. The ranks of the first pipeline call this."""
        if not self._stages.first:
            received: Values = self._stages.receive_object(0, Topic.WEIGHTS)
            return received
        assert layers is not None
        end = self._counts[0]
        for stage, count in enumerate(self._counts[1:], 1):
            self._stages.send_object(
                stage, Topic.WEIGHTS, [weights_of(each) for each in layers[end : end + count]]
            )
            end += count
        return [weights_of(each) for each in layers[: self._counts[0]]]

    def gather(self) -> Values | None:
        """Return the weights of the whole model's layers on the first stage, and None on the
        others. The ranks of a pipeline call this.
        """
        mine = [weights_of(layer) for layer in self._layers]
        if not self._stages.first:
            self._stages.send_object(0, Topic.WEIGHTS, mine)
            return None
        for stage in range(1, self._stages.count):
            mine += self._stages.receive_object(stage, Topic.WEIGHTS)
        return mine


def weights_of(layer: Any) -> list[Any]:
    """Return the weights of a layer as arrays."""
    return [np.asarray(value) for value in layer.get_weights()]


def set_weights(layer: Any, values: Sequence[Any]) -> None:
    """Overwrite a layer's weights. Normalization also recomputes its constants."""
    layer.set_weights(values)
    renew(layer._flatten_layers(), keras.layers.Normalization, numpy_of)
