"""The state of elastic training with PyTorch, and the handlers of its attributes."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import torch

from farandole.core.api.objects import broadcast_object
from farandole.core.api.state import ObjectState, check_names
from farandole.data import ElasticSampler
from farandole.job import context
from farandole.torch.optimizer import drop_gradients
from farandole.torch.replica_tensors import (
    bytes_of,
    has_equal_weights,
    is_sharded,
    optimizer_tensors,
    parameters_of_sets,
    whole_digest_of,
)
from farandole.torch.shares.state import follow_models
from farandole.torch.state import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Saves, restores and synchronizes one attribute of a ``TorchState``. It handles any object
    with ``state_dict`` and ``load_state_dict``; a subclass defines how rank 0's state reaches the
    other ranks: ``receive``.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep a copy in memory."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Return to the last saved state."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def prepare(self) -> None:
        """Prepare all ranks before the first value is received. Collective."""

    def receive(self) -> None:
        """Load rank 0's state without saving it. Collective."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0))

    def sync(self) -> None:
        """Load rank 0's state and save it. Collective."""
        self.receive()
        self.save()

    def reset(self) -> None:
        """Adapt to changed ranks without losing progress. A reader of data or a sampler that loads
        its own state divides the remaining samples among the current ranks.
        """
        self.value.load_state_dict(copy.deepcopy(self.value.state_dict()))

    def set_value(self, value: Any) -> None:
        """Replace the handled object."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a ``torch.nn.Module``."""

    def reset(self) -> None:
        """Keep the weights: they do not depend on the ranks."""

    def receive(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """Handles a ``torch.optim.Optimizer``, distributed or not."""

    def restore(self) -> None:
        """Return to the last saved state, at the beginning of a step. Gradients belong to other
        weights and are dropped.
        """
        drop_gradients(self.value)
        super().restore()

    def reset(self) -> None:
        """Keep the state of the optimizer: it does not depend on the ranks."""

    def prepare(self) -> None:
        """Let ranks that train different weights merge them on rank 0."""
        own = getattr(self.value, "_farandole", None)
        if own is not None:
            own.before_sync()

    def receive(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateHandler):
    """Handles an ``ElasticSampler``: its epoch and its processed samples."""


_registry: list[tuple[type, type[StateHandler]]] = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the types of attributes and their handlers; the first match is used. Any other object
    with ``state_dict`` and ``load_state_dict`` (a learning rate scheduler, for example) gets a
    ``StateHandler``.
    """
    return _registry


def set_handler_registry(registry: Sequence[tuple[type, type[StateHandler]]]) -> None:
    """Replace the list of handlers, for states that are created from now on."""
    global _registry
    _registry = list(registry)


class TorchState(ObjectState):
    """Models, optimizers, samplers and plain values, as attributes.

    ``TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)``. An
    attribute with ``state_dict()`` and ``load_state_dict()`` (a module, optimizer, sampler or
    learning rate scheduler, for example) stays the same object and is handled through these
    methods; other values are copied. Another object may be assigned later: ``state.model = other``.
    Nothing is sent before ``sync()``.
    """

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {**kwargs, "model": model, "optimizer": optimizer}
        found = {
            name: handler
            for name, value in given.items()
            if (handler := _handler_of(value)) is not None
        }
        object.__setattr__(self, "_handlers", found)
        for name, handler in found.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(
            broadcast_object,
            context.rank,
            **{name: value for name, value in given.items() if name not in found},
        )
        self._pair()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
            self._pair()
        super().__setattr__(name, value)

    def _pair(self) -> None:
        """Pass the models to optimizers that compute gradients by share."""
        values = [handler.value for handler in self._handlers.values()]
        models = [value for value in values if isinstance(value, torch.nn.Module)]
        follow_models(values, models)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        handlers = self._handlers.values()
        for handler in handlers:
            handler.prepare()
        for handler in handlers:
            if type(handler).sync is StateHandler.sync:
                handler.receive()
            else:  # a handler for Horovod, which also saves
                handler.sync()
        received = self._receive()
        for handler in handlers:
            handler.save()
        self._adopt(received)

    def to_bytes(self, saved: Any) -> bytes:
        file = io.BytesIO()
        torch.save(saved, file, pickle_module=cloudpickle)
        return file.getvalue()

    def _unpacked(self, data: bytes) -> Any:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def replicas(self) -> Mapping[str, Any]:
        """Return the parameters of models, and the states of their optimizers; none while a
        strategy lets the weights of ranks differ.

        Buffers are left out, because statistics (BatchNorm) differ between ranks.
        """
        values = {name: handler.value for name, handler in self._handlers.items()}
        if any(not has_equal_weights(value) for value in values.values()):
            return {}
        found: dict[str, Any] = {}
        own = parameters_of_sets(values.values())
        for name, value in values.items():
            if isinstance(value, torch.nn.Module):
                found |= {
                    f"{name}.{key}": each
                    for key, each in value.named_parameters()
                    if id(each) not in own and not is_sharded(each)
                }
            elif isinstance(value, torch.optim.Optimizer):
                found |= optimizer_tensors(name, value)
        return {key: each.detach() for key, each in found.items() if each.numel()}

    def digest_of_replica(self, value: Any) -> int:
        return whole_digest_of(value)

    def bytes_of_replica(self, value: Any) -> Any:
        return bytes_of(value)

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        here = self.replicas()
        for name, value in values.items():
            tensor = here[name]
            same = torch.from_numpy(value.copy()).view(tensor.dtype).reshape(tensor.shape)
            tensor.copy_(same)

    def saved_values(self) -> Any:
        return {name: each._saved for name, each in self._handlers.items()}, self._saved

    def use_saved_values(self, saved: Any) -> None:
        of_handlers, values = saved
        check_names(self._handlers, of_handlers)
        super().use_saved_values(values)
        for name, each in of_handlers.items():
            self._handlers[name]._saved = each


def _handler_of(value: Any) -> StateHandler | None:
    found = next((handler for kind, handler in _registry if isinstance(value, kind)), None)
    # Copying a scheduler would copy its optimizer too, and the copy would set the learning rate of
    # the optimizer's copy.
    if found is None and all(
        callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict")
    ):
        found = StateHandler
    return None if found is None else found(value)
