"""TensorFlow's SavedModel."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from farandole.errors import SettingsError, did_you_mean
from farandole.inference.fixed_batch import fixed_rows, run_in_fixed_batches
from farandole.inference.input_names import cast, named
from farandole.inference.models import Execution, Model

if TYPE_CHECKING:
    from farandole.base.types import Array

SIGNATURE = "serving_default"


class SavedModelPredictor:
    """A predictor for a signature of a SavedModel. Columns become its inputs by name, because a
    signature is unordered.
    """

    floating: str | None = None  # each input has its own

    def __init__(self, model: Any, execution: Execution, signature: str = SIGNATURE) -> None:
        fit(execution)
        if signature not in model.signatures:
            known = ", ".join(model.signatures) or "none"
            near = did_you_mean(signature, model.signatures)
            raise SettingsError(
                f"the SavedModel has no signature {signature!r} (it has: {known}){near}"
            )
        self._model = model  # a model's functions do not keep it alive
        self._function = model.signatures[signature]
        self._inputs = {
            name: spec.dtype for name, spec in self._function.structured_input_signature[1].items()
        }
        ends = [
            *self._function.structured_input_signature[1].values(),
            *self._function.structured_outputs.values(),
        ]
        self._rows = fixed_rows(
            None if each.shape.rank is None else each.shape.as_list() for each in ends
        )
        self._device = (
            execution.device.replace("cuda", "gpu") if execution.device.startswith("cuda") else ""
        )

    def __call__(self, inputs: dict[str, Array]) -> Any:
        return run_in_fixed_batches(
            self._run, named(inputs, [*self._inputs], "the SavedModel", ordered=False), self._rows
        )

    def _run(self, arrays: dict[str, Array]) -> dict[str, Any]:
        tensors = {name: _tensor(name, array, self._inputs[name]) for name, array in arrays.items()}
        with tf.device(self._device) if self._device else contextlib.nullcontext():
            return {name: _array(each) for name, each in self._function(**tensors).items()}


def fit(execution: Execution) -> None:
    """Set TensorFlow's threads to the task's number, which is fixed by the first computation."""
    if not execution.threads:
        return
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(execution.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    raise SettingsError(
        "a loaded SavedModel cannot be sent to other processes. Pass the path of its folder, which"
        " all hosts must reach, or a function without arguments that loads it"
    )


def load(path: str, options: Mapping[str, Any], execution: Execution) -> SavedModelPredictor:
    fit(execution)
    return wrap(tf.saved_model.load(path), options, execution)


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> SavedModelPredictor:
    return SavedModelPredictor(model, execution, str(options.get("signature", SIGNATURE)))


def _tensor(name: str, array: Array, dtype: Any) -> Any:
    if dtype == tf.string:
        return tf.convert_to_tensor(array, dtype)
    if dtype == tf.bfloat16:
        return tf.cast(tf.convert_to_tensor(cast(name, array, "float32")), dtype)
    return tf.convert_to_tensor(cast(name, array, dtype.as_numpy_dtype))


def _array(tensor: Any) -> Any:
    numbers = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
    return numbers.numpy()
