"""Models of each framework: sent as a file, opened once, and called with arrays."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.inference import models
from farandole.inference.frameworks import kind_of
from farandole.inference.isolate import BatchError
from farandole.inference.models import Execution, Model, is_loader, open_model, pack
from tests.kits.messages import mentioning

torch = pytest.importorskip("torch")

X = np.arange(12, dtype=np.float32).reshape(3, 4)
HERE = Execution(1, "cpu")


def called(model: Model, *arrays: Any, names: str = "x y") -> Any:
    """Open the sent model in a process that has nothing else, and call it."""
    models._opened.clear()
    return open_model(model, HERE)(dict(zip(names.split(), arrays, strict=False)))


class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A class of the program, with two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.9)
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any, y: Any) -> Any:
        return {"product": self.drop(x) * self.weight, "sum": (x.sum(1) + y).to(torch.bfloat16)}


def layers() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )


def test_a_torch_module_is_sent_with_its_class_and_evaluated() -> None:
    module = Scaled()
    found = called(pack(module), X, np.ones(3, np.float32))
    np.testing.assert_array_equal(found["product"], 2 * X)
    np.testing.assert_array_equal(found["sum"], X.sum(axis=1) + 1)
    assert module.training, "the program's own module stays as it is"


def test_files_of_torch(tmp_path: Path) -> None:
    module = layers().eval()
    expected = module(torch.from_numpy(X)).detach().numpy()
    torch.save(module, tmp_path / "layers.pt")
    torch.jit.save(torch.jit.trace(module, torch.from_numpy(X)), tmp_path / "script.pt")
    rows = {"input": {0: torch.export.Dim("rows")}}
    torch.export.save(
        torch.export.export(module, (torch.from_numpy(X),), dynamic_shapes=rows),
        tmp_path / "out.pt2",
    )
    for name in ("layers.pt", "script.pt"):
        np.testing.assert_allclose(called(pack(tmp_path / name), X), expected, rtol=1e-6)
    (tmp_path / "out.pt").write_bytes((tmp_path / "out.pt2").read_bytes())
    for name in ("out.pt2", "out.pt"):
        np.testing.assert_allclose(
            called(pack(tmp_path / name, trust_pickle=True), X), expected, rtol=1e-6
        )
        with pytest.raises(SettingsError, match=mentioning("trust_pickle=True", "pickles")):
            called(pack(tmp_path / name), X)
    assert called(pack(tmp_path / "out.pt2", trust_pickle=True), X[:2]).shape == (2, 2)


def test_a_pickle_of_other_code_is_opened_only_if_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "own.pt"
    torch.save(Scaled(), path)
    with pytest.raises(SettingsError, match=mentioning("trust_pickle=True")):
        called(pack(path), X, X[:, 0])
    assert called(pack(path, trust_pickle=True), X, X[:, 0])["product"].shape == X.shape
    torch.save(layers().state_dict(), path)
    with pytest.raises(SettingsError, match=mentioning("OrderedDict", "module")):
        called(pack(path), X)


def test_the_weights_of_torch_are_mapped(tmp_path: Path) -> None:
    weight = torch.nn.Linear(512, 512)
    model = pack(weight)._replace(content=b"")
    content = pack(weight).content
    models._opened.clear()
    predict = open_model(model, HERE, str(tmp_path), lambda: content)
    (path,) = tmp_path.iterdir()
    address = predict._module.weight.data_ptr()  # type: ignore[attr-defined]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (found,) = [
        row
        for row in maps
        if int(row[0].split("-")[0], 16) <= address < int(row[0].split("-")[1], 16)
    ]
    assert found[-1] == str(path)
    models._opened.clear()
    # another process of the host: the file is there
    open_model(model, HERE, str(tmp_path), pytest.fail)


def test_a_model_is_opened_once(tmp_path: Path) -> None:
    opened = []

    def load() -> Any:
        opened.append(1)
        return lambda x: x * 2

    # the function would be a copy with a separate list
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloudpickle.loads", lambda _: load)
        packed = pack(load)
        models._opened.clear()
        assert open_model(packed, HERE) is open_model(packed, HERE)
        assert open_model(packed, HERE) is not open_model(packed, Execution(2, "cpu"))
    assert len(opened) == 2
    path = tmp_path / "layers.pt"
    torch.save(layers(), path)
    first = open_model(pack(path), HERE)
    torch.save(torch.nn.Sequential(layers(), torch.nn.Linear(2, 30)), path)
    assert open_model(pack(path), HERE) is not first, "another file of the same name"


def test_a_model_has_the_threads_of_its_place() -> None:
    class Counts(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.full((len(x),), torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        packed = pack(Counts())
        three, two = open_model(packed, Execution(3)), open_model(packed, Execution(2))
        assert [int(each({"x": X})[0]) for each in (three, two, three)] == [3, 2, 3]
    finally:
        torch.set_num_threads(before)


def test_functions_without_arguments_load_models() -> None:
    assert [is_loader(each) for each in (lambda: 1, lambda path="x": path)] == [True, True]
    assert [is_loader(each) for each in (lambda x: x, lambda *x: x, np.exp, layers().forward)] == [
        False
    ] * 4
    np.testing.assert_array_equal(called(pack(lambda x, y: x + y), X, X), 2 * X)
    np.testing.assert_array_equal(called(pack(lambda: Scaled()), X, X[:, 0])["product"], 2 * X)
    np.testing.assert_array_equal(called(pack(np.exp), X), np.exp(X))


def test_invalid_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=mentioning("int", "torch module")):
        pack(3)
    with pytest.raises(SettingsError, match=mentioning("'.doc'")):
        pack("model.doc")
    with pytest.raises(SettingsError, match=mentioning("saved_model.pb", "folder")):
        pack(tmp_path)
    with pytest.raises(SettingsError, match=mentioning("path", "hosts")):
        called(pack(tmp_path / "none.pt"), X)
    with pytest.raises(SettingsError, match=mentioning("'batchsize'", "'batch_size'")):
        pack(layers(), batchsize=3)


def test_keras_models_with_several_inputs_outputs_and_own_layers() -> None:
    keras = pytest.importorskip("keras")

    class Doubled(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def call(self, x: Any) -> Any:
            return 2 * x

    one, two = keras.Input((4,), name="one"), keras.Input((4,), name="two")
    named = {"far": keras.layers.Subtract()([one, two]), "near": Doubled()(one)}
    model = keras.Model({"one": one, "two": two}, named)
    packed = pack(model)
    for names, arrays in (("one two", (X, X + 1)), ("two one", (X + 1, X))):
        found = called(packed, *arrays, names=names)
        np.testing.assert_array_equal(found["far"], -np.ones_like(X))
        np.testing.assert_array_equal(found["near"], 2 * X)
    with pytest.raises(BatchError, match=mentioning("Keras", "x, y")):
        open_model(packed, HERE)({"x": X, "y": X})
    # which Keras goes by
    keys = pack(keras.Model({"b": one, "a": two}, keras.layers.Subtract()([one, two])))
    np.testing.assert_array_equal(called(keys, X, X + 1, names="a b"), np.ones_like(X))
    listed = pack(keras.Model([one, two], keras.layers.Subtract()([one, two])))
    np.testing.assert_array_equal(called(listed, X, X + 1, names="two one"), np.ones_like(X))
    np.testing.assert_array_equal(called(listed, X, X + 1, names="p q"), -np.ones_like(X))
    with pytest.raises(
        BatchError,
        match=mentioning("one, two", "p, one"),
    ):
        open_model(listed, HERE)({"p": X, "one": X})
    single = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    assert pack(single).returns == "float"
    np.testing.assert_allclose(
        called(pack(single), X.astype("float64")), single.predict(X, verbose=0), rtol=1e-6
    )
    assert kind_of(single) == "keras"


def test_saved_models(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    class Module(tf.Module):  # type: ignore[misc,name-defined]
        @tf.function(
            input_signature=[
                tf.TensorSpec((None, 4), tf.float32, name="a"),
                tf.TensorSpec((None,), tf.float32, name="b"),
            ]
        )  # type: ignore[untyped-decorator,unused-ignore]
        def serve(self, a: Any, b: Any) -> Any:
            return {"rows": tf.reduce_sum(a, axis=1) - b}

    module = Module()
    tf.saved_model.save(
        module, str(tmp_path / "saved"), signatures={"serving_default": module.serve}
    )
    packed = pack(tmp_path / "saved")
    expected = X.sum(axis=1) - 1
    found = called(packed, X.astype("float64"), np.ones(3), names="a b")["rows"]
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(called(packed, np.ones(3), X, names="b a")["rows"], expected)
    with pytest.raises(BatchError) as error:
        called(packed, X)
    assert re.search("the SavedModel takes (a, b|b, a), but received 1 column", str(error.value))
    with pytest.raises(BatchError, match=mentioning("x, y")):
        called(packed, X, np.ones(3))
    with pytest.raises(SettingsError, match=mentioning("'serving'", "'serving_default'")):
        called(pack(tmp_path / "saved", signature="serving"), X)
    with pytest.raises(SettingsError, match=mentioning("path")):
        pack(tf.saved_model.load(str(tmp_path / "saved")))


def test_onnx_models(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto
    inputs = [helper.make_tensor_value_info(name, kind.FLOAT, ["rows", 4]) for name in "ab"]
    outputs = [
        helper.make_tensor_value_info("difference", kind.FLOAT, ["rows", 4]),
        helper.make_tensor_value_info("first", kind.INT64, ["rows"]),
    ]
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["difference"]),
        helper.make_node("ArgMax", ["a"], ["first"], axis=1, keepdims=0),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    packed = pack(model)
    assert packed.returns == "struct<`difference`:array<float>,`first`:bigint>"
    onnx.save(model, tmp_path / "model.onnx")
    for each in (packed, pack(tmp_path / "model.onnx"), pack(lambda: model)):
        found = called(each, X, X.astype("float64") + 1, names="a b")
        np.testing.assert_array_equal(found["difference"], -np.ones_like(X))
        assert found["first"].tolist() == [3, 3, 3]
    np.testing.assert_array_equal(
        called(packed, X + 1, X, names="b a")["difference"], -np.ones_like(X)
    )
    with pytest.raises(BatchError, match=mentioning("a, b", "1 column")):
        called(packed, X)


def test_hdf5_files_need_trust_where_keras_runs_their_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    from farandole.inference.frameworks import keras as opener

    asked = []
    old = SimpleNamespace(
        __version__="3.10.2",
        saving=keras.saving,
        models=SimpleNamespace(load_model=lambda path, **options: asked.append(options)),
    )
    monkeypatch.setattr(opener, "_keras", lambda *_: old)
    (tmp_path / "m.h5").write_bytes(b"\x89HDF")
    with pytest.raises(SettingsError, match=mentioning("Keras", "3.10.2", "trust_pickle=True")):
        called(pack(tmp_path / "m.h5"), X)
    assert not asked
    monkeypatch.setattr(opener, "KerasPredictor", lambda _: lambda inputs: 7)
    assert called(pack(tmp_path / "m.h5", trust_pickle=True), X) == 7
    old.__version__ = "3.11.0"
    assert called(pack(tmp_path / "m.h5"), X) == 7
    assert [each["safe_mode"] for each in asked] == [False, True]


def test_a_rewritten_model_is_reopened(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for value in (1.0, 2.0):
        module = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(module.weight, value)
        torch.nn.init.zeros_(module.bias)
        torch.save(module, tmp_path / "m.pt")
        fsspec.filesystem("memory").pipe("/farandole/m.pt", (tmp_path / "m.pt").read_bytes())
        predict = open_model(pack("memory://farandole/m.pt"), HERE, str(tmp_path))
        assert predict({"x": np.ones((1, 4), np.float32)}).tolist() == [[4 * value]]
    fsspec.filesystem("memory").rm("/farandole/m.pt")


def test_each_user_of_a_loader_calls_it_again(tmp_path: Path) -> None:
    path = str(tmp_path / "factor")
    load = lambda: (lambda factor: lambda x: x * factor)(float(open(path).read()))  # noqa: E731, SIM115
    for factor in (2.0, 3.0):
        Path(path).write_text(str(factor))
        packed = pack(load)
        assert open_model(packed, HERE)({"x": X[0]}).tolist() == (X[0] * factor).tolist()
        assert open_model(packed, HERE) is open_model(packed, HERE)


def test_an_absent_device_is_reported() -> None:
    last = torch.cuda.device_count()
    for device, says in (
        (f"cuda:{last}", (f"device='cuda:{last}'", f"torch finds {last or 'no'}")),
        ("gpu", "device='gpu'"),
    ):
        with pytest.raises(SettingsError, match=mentioning(says)):
            open_model(pack(torch.nn.Linear(4, 1)), Execution(1, device))


def test_a_model_whose_device_failed_is_not_used_again() -> None:
    class Broken(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            raise RuntimeError("CUDA error: device-side assert triggered")

    for packed in (pack(Broken()), pack(lambda x: Broken()(x))):
        predict = open_model(packed, HERE)
        with pytest.raises(BatchError, match="device-side assert"):
            predict({"x": X})
        assert open_model(packed, HERE) is not predict


def test_a_graph_made_in_training_mode_is_reported(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def warned(model: Any) -> bool:
        recwarn.clear()
        called(pack(model), X)
        return any("which eval() does not change" in str(each.message) for each in recwarn)

    module, x = torch.nn.Sequential(layers(), torch.nn.Dropout(0.5)), torch.from_numpy(X)
    free = torch.nn.BatchNorm1d(4, track_running_stats=False)  # which has no other mode
    for training in (True, False):
        module.train(training)
        assert warned(torch.jit.trace(module, x, check_trace=False)) is training
        assert warned(torch.export.export(module, (x,))) is training
        assert not warned(torch.jit.script(module))
        assert not warned(module)
    assert not warned(torch.jit.trace(free, x))


def test_files_and_modules_torch_cannot_open_are_reported(tmp_path: Path) -> None:
    torch.save(layers(), tmp_path / "whole.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:-50])
    (tmp_path / "text.pt").write_text("no model")
    torch.save(layers(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name, trusted, why in (
        ("torn.pt", True, ("torn.pt", "truncated")),
        ("text.pt", True, ("torch.save", "file")),
        ("old.pt", False, ("torch.save", "trust_pickle=True")),
    ):
        with pytest.raises(SettingsError, match=mentioning(why)):
            called(pack(tmp_path / name, trust_pickle=trusted), X)
    assert called(pack(tmp_path / "old.pt", trust_pickle=True), X).shape == (3, 2)
    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 2))
    np.testing.assert_allclose(
        called(pack(parametrized), X), parametrized(torch.from_numpy(X)).detach(), rtol=1e-6
    )
    parametrized.lock = threading.Lock()
    with pytest.raises(
        SettingsError,
        match=mentioning("pickled", "function"),
    ):
        pack(parametrized)
    with pytest.raises(RuntimeError, match=mentioning("'x'", "int64")):
        called(pack(layers()), X.astype("int64"))
    with pytest.raises(TypeError, match=mentioning("'x'", "text")):
        called(pack(layers()), np.array(["1", "2"], object))


def twice(x: Any) -> Any:
    return 2 * x


def test_keras_models_with_own_functions_and_without_weights(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation=twice)])
    np.testing.assert_allclose(called(pack(model), X), model.predict(X, verbose=0), rtol=1e-6)
    model.save(tmp_path / "m.keras")
    with pytest.raises(SettingsError, match=mentioning("m.keras", "name")):
        called(pack(tmp_path / "m.keras"), X)
    with pytest.raises(SettingsError, match=mentioning("weights", "process")):
        pack(keras.Sequential([keras.layers.Dense(2)]))


def times(factor: float) -> Any:
    def scaled(x: Any) -> Any:
        return factor * x

    return scaled


def test_keras_functions_of_one_name_are_distinguished() -> None:
    """Keras files refer to functions only by name, so one of two would replace both."""
    keras = pytest.importorskip("keras")

    def model(*activations: Any) -> Any:
        dense = [
            keras.layers.Dense(4, activation=each, kernel_initializer="ones")
            for each in activations
        ]
        return keras.Sequential([keras.Input((4,)), *dense])

    def relu(x: Any) -> Any:
        return 5 * x

    with pytest.raises(
        SettingsError,
        match=mentioning("'scaled'", "functions"),
    ):
        pack(model(times(2), times(3)))
    with pytest.raises(SettingsError, match=mentioning("'relu'", "Keras")):
        pack(model(relu, "relu"))
    same = times(2)
    chosen = {"scaled": same}
    for given, options in (((same, same), {}), ((same, times(2)), {"custom_objects": chosen})):
        expected = model(*given).predict(X, verbose=0)
        np.testing.assert_allclose(called(pack(model(*given), **options), X), expected, rtol=1e-6)
    # Keras's own numbers, as tf.nn.relu has
    relu = eval("lambda x: keras.ops.maximum(x, 0)", {"keras": keras})
    relu.__name__ = "relu"
    np.testing.assert_allclose(
        called(pack(model(relu)), X), model("relu").predict(X, verbose=0), rtol=1e-6
    )
    # their code is in the file
    layers = [keras.layers.Lambda(lambda x: x * 2), keras.layers.Lambda(lambda x: x * 7)]
    np.testing.assert_allclose(
        called(pack(keras.Sequential([keras.Input((4,)), *layers])), X), X * 14
    )


def test_code_of_the_program_keeps_its_file(tmp_path: Path) -> None:
    """AutoGraph reads it: without it a layer of Keras 2 with an ``if`` of a tensor cannot be
    opened.
    """
    source = (
        "def plain(x):\n    return x\nclass Own(Base):\n    def forward(self, x):\n       "
        " return x\n"
    )
    cell: dict[str, Any] = {"__name__": "__main__", "Base": torch.nn.Module}
    exec(compile(source, "/program/cell.py", "exec"), cell)
    path = tmp_path / "model.pt"
    path.write_bytes(pack(cell["Own"]()).content)
    options = dict(pack("m.keras", custom_objects={"plain": cell["plain"]}).options)
    found = [
        cloudpickle.loads(pack(cell["plain"]).content),
        cloudpickle.loads(options["custom_objects"])["plain"],
        torch.load(path, weights_only=False).forward,
    ]
    assert [each.__code__.co_filename for each in found] == ["/program/cell.py"] * 3


def test_onnx_models_of_scikit_learn_give_probabilities_by_label(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto
    maps = helper.make_map_type_proto(kind.INT64, helper.make_tensor_type_proto(kind.FLOAT, []))
    output = helper.make_value_info("p", helper.make_sequence_type_proto(maps))
    node = helper.make_node(
        "ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[3, 0, 2, 1]
    )
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind.FLOAT, ["rows", 4])], [output]
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    packed = pack(helper.make_model(graph, opset_imports=versions, ir_version=9))
    assert packed.returns == "array<float>"
    np.testing.assert_array_equal(called(packed, X)["p"], X[:, [1, 3, 2, 0]])
    (tmp_path / "torn.onnx").write_bytes(b"xx")
    with pytest.raises(SettingsError, match=mentioning("torn.onnx")):
        called(pack(tmp_path / "torn.onnx"), X)
