"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from farandole.inference.fixed_batch import fixed_rows, run_in_fixed_batches
from farandole.inference.input_names import cast, named
from farandole.inference.models import Execution, Model
from farandole.inference.returns import Type, of

if TYPE_CHECKING:
    from farandole.base.types import Array

_DTYPES = {"float": "float32", "double": "float64", "string": "object", "bool": "bool"}


class OnnxPredictor:
    """A predictor of an ONNX model. Columns become the model's inputs, by name if the names match,
    otherwise in order, and are cast to their dtypes.
    """

    floating: str | None = None  # each input has its own

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs = {each.name: np.dtype(_dtype(each.type)) for each in session.get_inputs()}
        self._outputs = [each.name for each in session.get_outputs()]
        self._rows = fixed_rows(
            each.shape for each in [*session.get_inputs(), *session.get_outputs()]
        )

    def __call__(self, inputs: dict[str, Array]) -> Any:
        arrays = named(inputs, [*self._inputs], "the ONNX model", ordered=True)
        feeds = {name: cast(name, array, self._inputs[name]) for name, array in arrays.items()}
        return run_in_fixed_batches(self._run, feeds, self._rows)

    def _run(self, feeds: dict[str, Array]) -> dict[str, Any]:
        outputs = self._session.run(None, feeds)
        return {name: _array(each) for name, each in zip(self._outputs, outputs, strict=True)}


def _array(output: Any) -> Any:
    """Return class probabilities in the order of their labels, from a list of maps, as
    scikit-learn's models return them.
    """
    if isinstance(output, list) and output and all(isinstance(each, dict) for each in output):
        return np.array([[each[label] for label in sorted(each)] for each in output])
    return output


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return Model.of_file("onnx", path, options, _returns(_session(str(path), Execution())))


def load(path: str, options: Mapping[str, Any], execution: Execution) -> OnnxPredictor:
    return OnnxPredictor(_session(path, execution))


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> OnnxPredictor:
    return OnnxPredictor(_session(model.SerializeToString(), execution))


def _session(model: str | bytes, execution: Execution) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = execution.threads
    options.inter_op_num_threads = 1
    providers: list[Any] = ["CPUExecutionProvider"]
    if execution.device.startswith("cuda"):
        providers.insert(
            0,
            ("CUDAExecutionProvider", {"device_id": int(execution.device.partition(":")[2] or 0)}),
        )
    return onnxruntime.InferenceSession(model, options, providers=providers)


def _dtype(kind: str) -> str:
    """Return numpy's name for a type like ``tensor(float)``."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)


def _kind(output: Any) -> Type:
    """Return the type of one row of an output; a sequence of maps holds class probabilities."""
    if output.type.startswith("seq(map("):
        return of((None,), _dtype(output.type.rpartition("tensor(")[2].rstrip(")")))
    return of(output.shape[1:], _dtype(output.type))


def _returns(session: Any) -> str:
    kinds = [(each.name, _kind(each)) for each in session.get_outputs()]
    if len(kinds) == 1:
        return str(kinds[0][1])
    return f"struct<{','.join(f'`{name}`:{kind}' for name, kind in kinds)}>"
