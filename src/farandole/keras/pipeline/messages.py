"""Messages between the stages of one pipeline."""

from __future__ import annotations

import pickle
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.core.groups.messages import Messages

if TYPE_CHECKING:
    from farandole.base.types import Array

# seconds, the default timeout of torch.distributed: another stage may load or compile
PATIENCE = 1800.0


class Topic(IntEnum):
    """Topics of messages. Messages of one topic and sender arrive in the order of sending."""

    FORWARD = 1  # the outputs for a micro batch, to the next stage
    BACKWARD = 2  # the gradient with respect to these outputs, to the previous stage
    TARGETS = 3  # from the first stage to the last
    RESULTS = 4  # from one stage to all others
    WEIGHTS = 5


class Kind(IntEnum):
    """Kinds of batches."""

    TRAIN = 1
    TEST = 2
    PREDICT = 3
    END = 4  # there are no more batches


_FORM, _DIMENSIONS = struct.Struct("<3qd16q"), 8


class Head(NamedTuple):
    """The header sent before a micro batch.

    ``number``: its number in a batch of ``rows``. ``losses``: losses added by earlier stages, as
    parts of the batch's loss. ``shape``, ``mask``: shapes of the tensor and of its Keras mask,
    empty without one.
    """

    kind: Kind
    number: int = 0
    rows: int = 0
    losses: float = 0.0
    shape: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()

    def packed(self) -> Array:
        sizes = [*_padded(self.shape), *_padded(self.mask)]
        return np.frombuffer(_FORM.pack(*self[:4], *sizes), np.uint8)

    @classmethod
    def of(cls, packed: Array) -> Head:
        kind, number, rows, losses, *sizes = _FORM.unpack(packed.tobytes())
        shape, mask = (
            tuple(size for size in part if size >= 0)
            for part in (sizes[:_DIMENSIONS], sizes[_DIMENSIONS:])
        )
        return cls(Kind(kind), number, rows, losses, shape, mask)


def _padded(shape: tuple[int, ...]) -> list[int]:
    if len(shape) > _DIMENSIONS:
        raise ValueError(
            f"Pipeline: {shape} has more than {_DIMENSIONS} dimensions, the maximum that stages"
            " can exchange"
        )
    return [*shape, *[-1] * (_DIMENSIONS - len(shape))]


class Stages:
    """The stages of this rank's pipeline. ``number``: its own, of ``count``."""

    def __init__(self, messages: Messages | None, number: int, count: int) -> None:
        """``messages``: among the ranks of the pipeline; not needed for a single stage."""
        self.number, self.count = number, count
        self.first, self.last = number == 0, number == count - 1
        self._wire = messages

    def switch_to(self, messages: Messages | None) -> bool:
        """Use ``messages`` from now on. Return whether they were already in use."""
        before, self._wire = self._wire, messages
        return before is messages

    def send(self, to: int, topic: Topic, array: Array) -> None:
        """Begin to send ``array``, which must not change until it is sent."""
        assert self._wire is not None
        message = self._wire.send(to, topic, _bytes(np.ascontiguousarray(array)), 0, PATIENCE)
        if message.done and message.error is not None:
            raise message.error

    def receive(self, source: int, topic: Topic, shape: tuple[int, ...], dtype: str) -> Array:
        """Receive an array. Raises HorovodInternalError if none arrives."""
        assert self._wire is not None
        array: Array = np.empty(shape, np.dtype(dtype))
        message = self._wire.receive(source, topic, _bytes(array), 0, PATIENCE)
        self._wire.wait(message)
        if message.error is not None:
            raise message.error
        return array

    def send_head(self, head: Head) -> None:
        """Send the header to the next stage."""
        self.send(self.number + 1, Topic.FORWARD, head.packed())

    def receive_head(self) -> Head:
        """Receive the header from the previous stage."""
        return Head.of(self.receive(self.number - 1, Topic.FORWARD, (_FORM.size,), "uint8"))

    def send_object(self, to: int, topic: Topic, value: Any) -> None:
        data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        self.send(to, topic, np.array([len(data)], np.int64))
        self.send(to, topic, data)

    def receive_object(self, source: int, topic: Topic) -> Any:
        [length] = self.receive(source, topic, (1,), "int64")
        # a message of this job
        return pickle.loads(self.receive(source, topic, (int(length),), "uint8").data)

    def from_last(self, value: Any) -> Any:
        """Return the last stage's ``value`` on all stages. Collective."""
        return self.broadcast(self.count - 1, value)

    def broadcast(self, source: int, value: Any) -> Any:
        """Return the ``value`` of stage ``source`` on all stages. Collective."""
        if self.number != source:
            return self.receive_object(source, Topic.RESULTS)
        for other in range(self.count):
            if other != source:
                self.send_object(other, Topic.RESULTS, value)
        return value

    def abort(self, why: str) -> None:
        """End the waits of other stages, because this rank cannot continue."""
        if self._wire is not None:
            self._wire.abort(why)


def _bytes(array: Array) -> Array:
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat
