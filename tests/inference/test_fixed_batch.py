"""Models that take one number of rows predict for any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.inference.fixed_batch import fixed_rows, run_in_fixed_batches
from farandole.inference.models import Execution, open_model, pack

X = np.arange(14, dtype=np.float32).reshape(7, 2)
HERE = Execution(1)


def negated(fixed: int, folder: Path, kind: str) -> Any:
    """A model with the output ``y`` = -x, for so many rows."""
    if kind == "onnx":
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        helper, number = onnx.helper, onnx.TensorProto.FLOAT
        ends = [helper.make_tensor_value_info(name, number, [fixed, 2]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "of", ends[:1], ends[1:])
        return pack(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        )
    if kind == "saved model":
        tf = pytest.importorskip("tensorflow")
        module = tf.Module()
        module.serve = tf.function(
            lambda x: {"y": -x}, input_signature=[tf.TensorSpec((fixed, 2), tf.float32, "x")]
        )
        tf.saved_model.save(
            module, str(folder / "saved"), signatures={"serving_default": module.serve}
        )
        return pack(folder / "saved")
    torch = pytest.importorskip("torch")

    class Negated(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return {"y": -x, "sums": (x.sum(1), [x.sum(1)])}

    return pack(torch.export.export(Negated(), (torch.zeros(fixed, 2),)))


@pytest.mark.parametrize("fixed", [1, 3])
@pytest.mark.parametrize("kind", ["torch", "saved model", "onnx"])
def test_models_that_take_a_fixed_number_of_rows(kind: str, fixed: int, tmp_path: Path) -> None:
    predict = open_model(negated(fixed, tmp_path, kind), HERE)
    for rows in (1, 3, 7):
        found = predict({"x": X[:rows]})
        np.testing.assert_array_equal(found["y"], -X[:rows])
        for sums in [found["sums"][0], *found["sums"][1]] if kind == "torch" else []:
            np.testing.assert_array_equal(sums, X[:rows].sum(axis=1))


def test_a_program_with_a_result_without_rows_gets_all_rows() -> None:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.sum()

    assert (
        open_model(pack(torch.export.export(Sum(), (torch.zeros(7, 2),))), HERE)({"x": X})
        == X.sum()
    )


def test_rows_that_all_shapes_have() -> None:
    assert fixed_rows([(3, 2), (3,)]) == 3
    assert [
        fixed_rows(each)
        for each in ([(3,), (2,)], [(3,), ()], [(None, 2)], [("rows", 2)], [None, (3,)], [])
    ] == [0] * 6


def test_no_rows_are_given_as_they_come() -> None:
    assert run_in_fixed_batches(lambda inputs: inputs["x"], {"x": X[:0]}, 3).shape == (0, 2)
