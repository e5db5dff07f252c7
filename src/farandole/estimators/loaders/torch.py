"""A PyTorch model as a function of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch

from farandole.errors import DataError
from farandole.estimators.loaders.categories import whole_numbers
from farandole.inference.named import crossed


class Loader(NamedTuple):
    """Called in a worker, once. ``content``: the model's pickle. ``whole``: whether each input is of whole numbers."""

    content: bytes
    whole: Sequence[bool]
    shapes: Sequence[Any] | None
    labels: Sequence[str] = ()

    def __call__(self) -> Callable[..., tuple[Any, ...]]:
        model = cloudpickle.loads(self.content).eval()

        def predict(*arrays: Any) -> tuple[Any, ...]:
            with torch.inference_mode():
                inputs = inputs_of(arrays, self.whole, self.shapes, floating(model), torch.device("cpu"))
                found = several(model(*inputs), self.labels)
                return tuple(each.double().numpy() for each in found)  # as the columns are

        return predict


def inputs_of(arrays: Sequence[Any], whole: Sequence[bool], shapes: Any, dtype: Any, device: Any) -> list[Any]:
    """Arrays as the model's inputs: floats of ``dtype``, or whole numbers; of ``shapes``, those of a batch, where -1
    stands for rows, or of a row."""
    found = []
    for place, array in enumerate(arrays):
        array = whole_numbers(array, "int64") if whole[place] else array
        tensor = tensor_of(array).to(device=device, dtype=torch.int64 if whole[place] else dtype)
        if shapes is not None and shapes[place] is not None:
            tensor = tensor.reshape(_of_batch(shapes[place], tensor))
        found.append(tensor)
    return found


def _of_batch(shape: Sequence[int], batch: Any) -> Sequence[int]:
    """``shape`` for batches of any number of rows. Without -1 it is that of a row, or of a batch, whose first axis is
    the rows: Horovod took both, where each batch was as long as the shape says."""
    row = math.prod(batch.shape[1:])
    for own in (shape, shape[1:]):
        if -1 not in shape and math.prod(own) == row:
            return (-1, *own)
    return shape


def tensor_of(array: Any) -> Any:
    """An array that may be written to, as tensors may."""
    return torch.from_numpy(np.ascontiguousarray(array if array.flags.writeable else array.copy()))


def label_of(array: Any, model: Any) -> Any:
    """A label as a tensor: of whole numbers, or of floats like the model's, but never of half precision, in which the
    class 257 is 256."""
    tensor = tensor_of(array)
    return (
        tensor.to(torch.promote_types(floating(model), torch.float32)) if tensor.is_floating_point() else tensor.long()
    )


def floating(model: Any) -> Any:
    """The type of the model's numbers."""
    return next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)


def several(outputs: Any, labels: Sequence[str] = ()) -> list[Any]:
    """A model's outputs, as a list. Several in a dict: in the order of the labels, if they have their names, otherwise
    in their own. DataError where a label would learn from another output than that of its name."""
    if isinstance(outputs, Mapping):
        if set(outputs) == set(labels):
            return [outputs[name] for name in labels]
        if len(outputs) == len(labels) and crossed(labels, [*outputs]):
            raise DataError(
                f"the model's outputs are a dict of {', '.join(outputs)}, and the label columns are "
                f"{', '.join(labels)}: in order, {crossed(labels, [*outputs])!r} would be paired with another output; "
                "give outputs the names of their labels, or names that no label has, in the order of label_cols"
            )
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]
