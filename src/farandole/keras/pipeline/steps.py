"""One batch through the stages of a pipeline: all micro batches forward, then all of them backward
(GPipe).

The last stage computes the loss of the whole batch once it has all outputs. Any loss therefore
equals the loss in one process, regardless of its use of rows, weights and masks.

Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism"
(2019).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from farandole.keras.pipeline import cuts
from farandole.keras.pipeline.computation import Computation, Passed, array_of
from farandole.keras.pipeline.messages import Head, Kind, Stages, Topic


class Whole(NamedTuple):
    """The last stage's results for a batch. ``losses``: additional ones, of all stages; ``loss``:
    the loss including them.
    """

    outputs: Any
    rows: int
    losses: float
    loss: Any = None


class _Micro(NamedTuple):
    """A micro batch that has gone through the layers. ``head``: its header, with the losses of this
    stage added.
    """

    passed: Passed
    rows: int
    head: Head

    @property
    def share(self) -> float:
        """Return the micro batch's share in a mean over the batch."""
        return self.rows / self.head.rows


class Steps:
    """Runs batches through a stage. ``dtype_in``, ``dtype_out``: of its inputs and outputs."""

    def __init__(
        self,
        stages: Stages,
        computation: Computation,
        micro_batches: int,
        dtype_in: str,
        dtype_out: str,
    ) -> None:
        self._stages, self._computation, self._micro_batches = stages, computation, micro_batches
        self._dtype_in, self._dtype_out = dtype_in, dtype_out

    def forward(self, kind: Kind, x: Any) -> Whole | None:
        """Run a batch without gradients. ``x``: the batch, on the first stage. Returns its results
        on the last stage.
        """
        if not self._stages.last:
            for _ in self._micros(kind, x):
                pass
            return None
        micros = list(self._micros(kind, x))
        passed = [micro.passed for micro in micros]
        outputs = self._computation.joined(
            [each.outputs for each in passed], [each.mask for each in passed]
        )
        return self._whole(micros, outputs)

    def train(
        self, x: Any, loss_of: Callable[[Whole], Any], optimizer: Any, *, steps: bool
    ) -> Whole | None:
        """Take a step of the optimizer, or none if no weight is trained.

        ``loss_of``: for the last stage. Returns the results for the batch on the last stage.
        """
        scale = getattr(optimizer, "loss_scale_factor", None) or 1.0
        micros = deque(self._micros(Kind.TRAIN, x))
        whole, gradients = (
            self._loss(micros, loss_of, scale) if self._stages.last else (None, iter(()))
        )
        while micros:
            micro = micros.popleft()  # its memory is released once its gradient is computed
            gradient = next(gradients) if self._stages.last else self._gradient(micro)
            self._send_back(
                micro, self._computation.backward(micro.passed, gradient, micro.share * scale)
            )
        if steps:
            self._computation.step(optimizer)
        return whole

    def end(self) -> None:
        """Announce the end of batches on the first stage; receive the announcement on others."""
        if not self._stages.first:
            self._next_head(Kind.END, 0)
        if not self._stages.last:
            self._stages.send_head(Head(Kind.END))

    def forget(self) -> None:
        """Drop the gradients of an abandoned batch."""
        self._computation.forget()

    # Forward.

    def _micros(self, kind: Kind, x: Any) -> Iterator[_Micro]:
        for head, rows, inputs, mask in (
            self._cut(kind, x) if self._stages.first else self._arrivals(kind)
        ):
            training = kind is Kind.TRAIN
            passed = self._computation.forward(
                inputs,
                mask,
                training=training,
                watch=training and not self._stages.first and "float" in self._dtype_in,
            )
            if passed.losses is not None:
                # torch warns when a tensor with a gradient is converted to float
                added = float(keras.ops.stop_gradient(passed.losses))
                head = head._replace(losses=head.losses + rows / head.rows * added)
            if not self._stages.last:
                self._send_on(head, passed)
            yield _Micro(passed, rows, head)

    def _cut(self, kind: Kind, x: Any) -> Iterator[tuple[Head, int, Any, Any]]:
        begin, rows = 0, int(x.shape[0])
        for number, count in enumerate(cuts.parts(rows, self._micro_batches)):
            yield Head(kind, number, rows), count, x[begin : begin + count], None
            begin += count

    def _arrivals(self, kind: Kind) -> Iterator[tuple[Head, int, Any, Any]]:
        counts, number = [0], 0
        while number < len(counts):
            head, before = self._next_head(kind, number), self._stages.number - 1
            inputs = self._stages.receive(before, Topic.FORWARD, head.shape, self._dtype_in)
            mask = (
                self._stages.receive(before, Topic.FORWARD, head.mask, "bool")
                if head.mask
                else None
            )
            counts = cuts.parts(head.rows, self._micro_batches)
            yield (
                head,
                counts[number],
                _tensor(inputs, self._dtype_in),
                None if mask is None else _tensor(mask, "bool"),
            )
            number += 1

    def _next_head(self, kind: Kind, number: int) -> Head:
        """Receive the next header from the previous stage. Raises ValueError if that stage runs
        another kind of batch.
        """
        head = self._stages.receive_head()
        if (head.kind, head.number) != (kind, number):
            raise ValueError(
                f"Pipeline: stage {self._stages.number} expected {_WORDS[kind]}, but stage"
                f" {self._stages.number - 1} sent {_WORDS[head.kind]}. Pass data with the same"
                " number of batches to all ranks of a pipeline, and make the same calls"
            )
        return head

    def _send_on(self, head: Head, passed: Passed) -> None:
        outputs = array_of(passed.outputs, self._dtype_out)
        mask = np.empty((), bool) if passed.mask is None else array_of(passed.mask, "bool")
        self._stages.send_head(head._replace(shape=outputs.shape, mask=mask.shape))
        self._stages.send(self._stages.number + 1, Topic.FORWARD, outputs)
        if mask.shape:
            self._stages.send(self._stages.number + 1, Topic.FORWARD, mask)

    # Backward.

    def _loss(
        self, micros: deque[_Micro], loss_of: Callable[[Whole], Any], scale: float
    ) -> tuple[Whole, Iterator[Any]]:
        """Return the results for the batch, and the gradient of its loss with respect to the
        outputs of each micro batch.
        """
        outputs, loss, gradient = self._computation.loss(
            [micro.passed.outputs for micro in micros],
            [micro.passed.mask for micro in micros],
            lambda outputs: loss_of(self._whole(micros, outputs)),
        )
        whole = self._whole(micros, outputs)._replace(loss=loss)
        if gradient is None:
            return whole, itertools.repeat(None)
        if scale != 1.0:
            gradient = gradient * scale
        ends = list(
            itertools.accumulate(
                [int(micro.passed.outputs.shape[0]) for micro in micros], initial=0
            )
        )
        parts = (gradient[begin:end] for begin, end in itertools.pairwise(ends))
        return whole, parts

    def _gradient(self, micro: _Micro) -> Any:
        """Receive the gradient with respect to the outputs from the next stage; None if it has
        none.
        """
        if "float" not in self._dtype_out:
            return None
        shape, after = tuple(micro.passed.outputs.shape), self._stages.number + 1
        return _tensor(
            self._stages.receive(after, Topic.BACKWARD, shape, self._dtype_out), self._dtype_out
        )

    def _send_back(self, micro: _Micro, gradient: Any) -> None:
        if self._stages.first or "float" not in self._dtype_in:
            return
        if gradient is None:
            array = np.zeros(micro.head.shape, np.dtype(self._dtype_in))
        else:
            array = array_of(gradient, self._dtype_in)
        self._stages.send(self._stages.number - 1, Topic.BACKWARD, array)

    def _whole(self, micros: list[_Micro] | deque[_Micro], outputs: Any) -> Whole:
        return Whole(outputs, micros[0].head.rows, sum(micro.head.losses for micro in micros))


_WORDS = {
    Kind.TRAIN: "a batch to train on",
    Kind.TEST: "a batch to evaluate",
    Kind.PREDICT: "a batch to predict",
    Kind.END: "the end of its batches",
}


def _tensor(array: Any, dtype: str) -> Any:
    return keras.ops.convert_to_tensor(array, dtype=dtype)
