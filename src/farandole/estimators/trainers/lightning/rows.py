"""Rows in the form of a LightningModule: dicts of tensors by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.torch import floating, inputs_of, label_of, tensor_of
from farandole.estimators.spec import Spec
from farandole.estimators.trainers.lightning.losses import Losses


class _Rows(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches as dicts of tensors by column, as Horovod's modules expect."""

    def __init__(self, batches: Batches, module: Any, spec: Spec, losses: Losses | None) -> None:
        self._batches = batches
        self._module = module
        self._spec = spec
        self._losses = losses

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._losses is None:  # validation: all rows again
            self._batches.rewind()
        else:
            self._losses.coming.clear()
        for batch in self._batches:
            if self._losses is not None:
                self._losses.coming.append((batch.share, batch.rows))
            yield given(batch, self._spec, self._module)


def given(batch: Batch, spec: Spec, module: Any) -> dict[str, Any]:
    """Return tensors by column name.

    Integers in columns added by transformation_fn stay integers. Under Horovod's names, integer
    features also do, as modules written for Horovod expect.
    """
    columns, payload, cpu = spec.columns, spec.payload, torch.device("cpu")
    arrays = dict(batch.others) or dict(zip(columns.features, batch.inputs, strict=True))
    shapes = dict(zip(columns.features, payload["input_shapes"] or (), strict=False))
    tensors = {}
    for name, array in arrays.items():
        kept = array.dtype.kind in "iu" and (columns.by_row or name not in columns.all)
        whole = name in payload["categories"] or (kept and name not in payload["numbers"])
        if name in columns.labels and name not in columns.features:
            tensors[name] = label_of(array, module)
        else:
            tensors[name] = inputs_of([array], [whole], [shapes.get(name)], floating(module), cpu)[
                0
            ]
    for name, array in () if batch.others else zip(columns.labels, batch.labels, strict=True):
        if name not in tensors:
            tensors[name] = label_of(array, module)
    if columns.weight is not None and batch.weight is not None:
        tensors[columns.weight] = tensor_of(batch.weight)
    return tensors


def loader(batches: Batches, module: Any, spec: Spec, losses: Losses | None = None) -> Any:
    return torch.utils.data.DataLoader(_Rows(batches, module, spec, losses), batch_size=None)
