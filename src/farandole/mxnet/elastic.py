"""Elastic training with MXNet: ``hvd.elastic``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from farandole.core.api.arrays import broadcast_arrays
from farandole.core.api.elastic import run as run
from farandole.core.api.objects import broadcast_object
from farandole.core.api.state import ObjectState as ObjectState
from farandole.core.api.state import check_fit
from farandole.data import ElasticSampler as ElasticSampler
from farandole.mxnet.parameter_names import canonical

if TYPE_CHECKING:
    from farandole.base.types import Array

__all__ = ["ElasticSampler", "MXNetState", "ObjectState", "run"]


class MXNetState(ObjectState):
    """The state of a network, its trainer and plain values (``epoch=0, batch=0``).

    ``net``: a gluon ``Block``, or its ``collect_params()``, with initialized parameters.
    ``trainer``: a ``DistributedTrainer``; its optimizer's states and counts belong to the state.
    ``kwargs``: the plain values, as attributes. Nothing is sent before ``sync()``. Raises
    ValueError if a parameter is not initialized.
    """

    def __init__(self, net: Any, trainer: Any = None, **kwargs: Any) -> None:
        self.net, self.trainer = net, trainer
        collected = net.collect_params() if hasattr(net, "collect_params") else net
        self._parameters = list(collected.values())
        self._copies: list[Array] = []
        self._optimizer = b""
        self._strategy: Mapping[str, Any] | None = None  # the state of the trainer's strategy
        super().__init__(**kwargs)
        self._save_net()

    def save(self) -> None:
        self._save_net()
        super().save()

    def restore(self) -> None:
        self._load(self._copies, self._optimizer)
        exchange = self._exchange()
        if exchange is not None and self._strategy is not None:
            exchange.load_state_dict(self._strategy)
        super().restore()

    def sync(self) -> None:
        names = canonical(parameter.name for parameter in self._parameters)
        weights = broadcast_arrays(self._weights(), list(names))
        optimizer = broadcast_object(self._states())
        exchange = self._exchange()
        strategy = None if exchange is None else broadcast_object(exchange.state_dict())
        received = self._receive()
        self._load(weights, optimizer)
        if exchange is not None:
            exchange.share(strategy)
        self._save_net()
        self._adopt(received)

    def saved_values(self) -> Any:
        return self._copies, self._optimizer, self._strategy, self._saved

    def use_saved_values(self, saved: Any) -> None:
        copies, optimizer, *strategy, values = saved  # earlier versions saved no strategy
        check_fit(self._copies, copies)
        super().use_saved_values(values)
        self._copies, self._optimizer = copies, optimizer
        self._strategy = strategy[0] if strategy else None

    def _save_net(self) -> None:
        self._copies, self._optimizer = self._weights(), self._states()
        exchange = self._exchange()
        self._strategy = None if exchange is None else exchange.state_dict()

    def _exchange(self) -> Any:
        """Return the exchanges of the trainer's weights; None if it exchanges gradients."""
        return getattr(self.trainer, "_exchange", None)

    def _weights(self) -> list[Array]:
        try:
            return [parameter.list_data()[0].asnumpy() for parameter in self._parameters]
        except DeferredInitializationError as error:
            raise ValueError(
                "a parameter of the network is not initialized. Call the network on a batch before"
                f" MXNetState: {error}"
            ) from error

    def _states(self) -> bytes:
        if self.trainer is None:
            return b""
        # with the optimizer, whose counts of updates Adam and learning rate schedules use
        states: bytes = _updaters(self.trainer)[0].get_states(dump_optimizer=True)
        return states

    def _load(self, weights: list[Array], optimizer: bytes) -> None:
        for parameter, weight in zip(self._parameters, weights, strict=True):
            parameter.set_data(mx.nd.array(weight, dtype=np.dtype(parameter.dtype)))
            if parameter.grad_req == "add":
                parameter.zero_grad()  # the gradients belong to other weights
        if not optimizer:
            return
        updaters = _updaters(self.trainer)
        _, theirs = pickle.loads(optimizer)
        mine = self.trainer._optimizer
        kept = {"param_dict": mine.param_dict, "rescale_grad": mine.rescale_grad}
        vars(mine).update({**vars(theirs), **kept})
        for updater in updaters:
            updater.set_states(optimizer)
            updater.optimizer = mine


def _updaters(trainer: Any) -> Any:
    """Return the trainer's updaters, one for each device of this rank."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    return trainer._updaters
