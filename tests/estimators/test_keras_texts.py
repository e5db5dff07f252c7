"""KerasEstimator with models that look up texts themselves, which only TensorFlow's tensors hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

PROGRAM = """
import sys
import numpy as np
from pyspark.sql import SparkSession
from farandole.estimators import KerasEstimator, KerasModel, LocalBackend

if sys.argv[1] == "tf_keras":
    import tf_keras as keras
else:
    import keras
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
words = ["red", "green", "blue", "green", "blue", "red"]
rows = [(word, f"{word} hot", float(number), float(word == "red"))
        for number, word in enumerate(words * 4)]
frame = spark.createDataFrame(rows, "word string, phrase string, number double, y double")
layers = keras.layers
word, phrase = (keras.Input((1,), dtype="string", name=name) for name in ("word", "phrase"))
number = keras.Input((1,), name="number")
lookup = layers.StringLookup(vocabulary=["red", "green", "blue"])
codes = layers.Flatten()(layers.Embedding(4, 2)(lookup(word)))
vectors = layers.TextVectorization(output_mode="multi_hot", vocabulary=["red", "hot"])
features = layers.Concatenate()([codes, layers.Flatten()(vectors(phrase)), number])
model = keras.Model([word, phrase, number], layers.Dense(1, activation="sigmoid")(features))
trained = KerasEstimator(
    model=model, optimizer="adam", loss="binary_crossentropy", prediction_col="prediction",
    feature_cols=["word", "phrase", "number"], label_cols=["y"], batch_size=8, epochs=2, validation=0.3,
    verbose=0, backend=LocalBackend(2),
).fit(frame)
trained.save(sys.argv[2])
found = KerasModel.load(sys.argv[2]).transform(frame).toPandas()
import tensorflow as tf
inputs = [tf.constant(found[name].to_numpy(object)[:, None]) for name in ("word", "phrase")]
expected = trained.getModel()([*inputs, tf.constant(found["number"].to_numpy("float32")[:, None])])
np.testing.assert_allclose(found["y__output"], np.ravel(expected), rtol=1e-5)
assert set(found["prediction"]) <= {0.0, 1.0}
print("trained on texts")
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_columns_of_texts_are_inputs(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, package, str(tmp_path / "model")],
        env={
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "TF_USE_LEGACY_KERAS": str(int(package == "tf_keras")),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "trained on texts" in done.stdout, done.stderr[-4000:]
