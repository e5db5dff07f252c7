"""A PyTorch model as a function of arrays."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch

from farandole.errors import DataError
from farandole.estimators.loaders.arrays import whole_numbers
from farandole.inference.input_names import crossed

_TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Loader(NamedTuple):
    """A loader that a worker calls once. ``content``: the pickled model. ``whole``: for each input,
    whether it takes integers.
    """

    content: bytes
    whole: Sequence[bool]
    shapes: Sequence[Any] | None
    labels: Sequence[str] = ()
    names: Sequence[str] = ()

    def __call__(self) -> Callable[..., tuple[Any, ...]]:
        model = cloudpickle.loads(self.content).eval()

        def predict(*arrays: Any) -> tuple[Any, ...]:
            with torch.inference_mode():
                inputs = inputs_of(
                    arrays, self.whole, self.shapes, floating(model), torch.device("cpu")
                )
                with naming(model, self.names, inputs):
                    outputs = output_list(model(*inputs), self.labels)
                # in the type of the columns
                return tuple(each.double().numpy() for each in outputs)

        return predict


def inputs_of(
    arrays: Sequence[Any], whole: Sequence[bool], shapes: Any, dtype: Any, device: Any
) -> list[Any]:
    """Return arrays as the model's inputs: floats of ``dtype``, or integers.

    ``shapes``: shapes of a batch, in which -1 is the number of rows, or of one row.
    """
    tensors = []
    for index, array in enumerate(arrays):
        array = whole_numbers(array, "int64") if whole[index] else array
        tensor = tensor_of(array).to(device=device, dtype=torch.int64 if whole[index] else dtype)
        if shapes is not None and shapes[index] is not None:
            tensor = tensor.reshape(_of_batch(shapes[index], tensor))
        tensors.append(tensor)
    return tensors


def _of_batch(shape: Sequence[int], batch: Any) -> Sequence[int]:
    """Return ``shape`` for batches of any number of rows.

    Without -1 it is the shape of one row, or of a batch whose first axis is the rows. Horovod
    accepted both, because all its batches had exactly that length.
    """
    row = math.prod(batch.shape[1:])
    for own in (shape, shape[1:]):
        if -1 not in shape and math.prod(own) == row:
            return (-1, *own)
    return shape


def tensor_of(array: Any) -> Any:
    """Return a tensor of an array, copied if it is read-only, because tensors are writable."""
    return torch.from_numpy(np.ascontiguousarray(array if array.flags.writeable else array.copy()))


def label_of(array: Any, model: Any) -> Any:
    """Return a label as a tensor of integers, or of floats like the model's, but never in half
    precision, which rounds class 257 to 256.
    """
    tensor = tensor_of(array)
    return (
        tensor.to(torch.promote_types(floating(model), torch.float32))
        if tensor.is_floating_point()
        else tensor.long()
    )


def floating(model: Any) -> Any:
    """Return the floating-point type of the model."""
    return next(
        (each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32
    )


def output_list(outputs: Any, labels: Sequence[str] = ()) -> list[Any]:
    """Return a model's outputs as a list. Outputs in a dict are in the order of the labels, if they
    have the labels' names, otherwise in their own order.

    Raises DataError if a label would be trained on an output with another label's name.
    """
    if isinstance(outputs, Mapping):
        if set(outputs) == set(labels):
            return [outputs[name] for name in labels]
        if len(outputs) == len(labels) and crossed(labels, [*outputs]):
            raise DataError(
                f"the model's outputs are a dict of {', '.join(outputs)}, but the label columns are"
                f" {', '.join(labels)}: in this order, {crossed(labels, [*outputs])!r} would be"
                " compared with the wrong output. Give the outputs the names of their labels, or"
                " names that no label has, in the order of label_cols"
            )
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


@contextlib.contextmanager
def naming(model: Any, names: Sequence[str], inputs: Sequence[Any]) -> Iterator[None]:
    """Turn an IndexError from an embedding table of ``model`` into a DataError that names the
    table, the index and the column. ``inputs``: the model's inputs, for the columns ``names``.
    """
    try:
        yield
    except IndexError as error:
        text = _described_error(model, names, inputs)
        if text:
            raise DataError(text) from error
        raise


def _described_error(model: Any, names: Sequence[str], inputs: Sequence[Any]) -> str:
    """Describe the model's out-of-range lookup, found by calling the model again with these inputs;
    "" if there is none.
    """
    lookups: list[tuple[str, Any, int]] = []

    def look(name: str) -> Any:
        def hook(table: Any, arguments: Any) -> None:
            numbers = arguments[0]
            beyond = numbers[(numbers < 0) | (numbers >= table.num_embeddings)]
            if beyond.numel() and not lookups:
                lookups.append((name, table, int(beyond.reshape(-1)[0])))

        return hook

    tables = [(name, each) for name, each in model.named_modules() if isinstance(each, _TABLES)]
    hooks = [each.register_forward_pre_hook(look(name)) for name, each in tables]
    try:
        with contextlib.suppress(Exception), torch.no_grad():
            model(*inputs)
    finally:
        for each in hooks:
            each.remove()
    if not lookups:
        return ""
    name, table, number = lookups[0]
    columns = [
        column for column, each in zip(names, inputs, strict=False) if bool((each == number).any())
    ]
    where = (
        f"in column {' or '.join(map(repr, columns))}"
        if columns
        else f"features: {', '.join(names)}"
    )
    return (
        f"the table {name or type(table).__name__} of the model has {table.num_embeddings} rows,"
        f" for indices from 0 to {table.num_embeddings - 1}, but received the index {number}"
        f" ({where}). Index the categories of all rows in the same way (StringIndexer), or give the"
        " table more rows"
    )
