"""Keras on PyTorch: gradients are reduced in place, in their host memory, as in DDP. Gradients on a
GPU are copied to the host and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from farandole.base.types import DType
from farandole.keras.checks import KerasReplica
from farandole.strategies.list_reducer import GradientListReducer
from farandole.torch.functions import binding
from farandole.torch.weights import Held

if TYPE_CHECKING:
    from farandole.base.types import Array

plain_errors = nullcontext  # errors arrive unchanged


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(call: Callable[..., Any], *args: Any) -> Any:
    """Return ``call(*args)``, excluded from torch.compile."""
    return call(*args)


def dense(grads: Sequence[Any]) -> Sequence[Any]:
    """Return ``grads`` unchanged: PyTorch's are dense here."""
    return grads


def reduced(
    grads: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: KerasReplica,
    now: Callable[[], Any] | None,
) -> list[Any]:
    """Return the reduced gradients.

    See ``reducer``. ``now`` is not used: Keras calls this only when it applies the gradients.
    """
    with torch.no_grad():
        compression = reducer.options.compressor
        pairs = [compression.compress(grad) for grad in grads]
        arrays = reducer(
            [_array(small) for small, _ in pairs], names, in_place=True, replica=replica
        )
        return [
            compression.decompress(_tensor(array, small), token)
            for array, (small, token) in zip(arrays, pairs, strict=True)
        ]


def _array(tensor: Any) -> Array:
    data, _, dtype = binding.buffer(
        tensor.to_dense() if tensor.layout is not torch.strided else tensor
    )
    if dtype is DType.BFLOAT16:
        data = data.view(np.dtype("bfloat16"))  # Keras has imported ml_dtypes, which registers it
    shaped: Array = data.reshape(tuple(tensor.shape))
    return shaped


def _tensor(array: Array, like: Any) -> Any:
    """Return ``array`` as a tensor, or ``like`` itself if it shares the memory or is on a GPU,
    where it is overwritten.
    """
    if like.is_cpu and like.layout is torch.strided and like.data_ptr() == array.ctypes.data:
        return like
    flat = array.reshape(-1)
    if like.dtype is torch.bfloat16:
        flat = flat.view(np.uint16)
    if (
        not like.is_cpu
        and like.layout is torch.strided
        and like.is_contiguous()
        and not like.is_neg()
    ):
        return like.copy_(binding.tensor(flat, tuple(like.shape)))
    return binding.tensor(
        flat, tuple(like.shape), like if like.layout is torch.strided else like.to_dense()
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run_if(
    due: Any, run: Callable[[Sequence[Any], int], None], values: Sequence[Any], step: Any
) -> Sequence[Any]:
    """Run an exchange of weights; see ``exchange``. Arrays share the memory of host tensors."""
    if due:
        held = [Held(value) for value in values]
        run([one.array for one in held], int(step))
        for one in held:
            one.put_back()
    return values
