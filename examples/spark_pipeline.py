"""A pipeline on Spark from raw rows to predictions: features, a network trained on two workers, and
a column of scores.

    python examples/spark_pipeline.py --framework torch --num-proc 2    # or keras
    spark-submit examples/spark_pipeline.py --num-proc 8 --data /shared/mnist \\
        --work hdfs:///user/me/mnist

Without ``--data`` it uses scikit-learn's digits; with it, MNIST's IDX files from a folder.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import SparkSession

from farandole.data import Store


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", choices=["torch", "keras"], default="torch")
    parser.add_argument(
        "--master", help="default: spark-submit's master, else all cores of this machine"
    )
    parser.add_argument("--num-proc", type=int, default=2, metavar="N")
    parser.add_argument("--data", metavar="DIR")
    parser.add_argument(
        "--work", metavar="DIR", default="work", help="folder for data, checkpoints and predictions"
    )
    parser.add_argument("--epochs", type=int, default=8)
    return parser.parse_args()


def load(data: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return a row for each image: its pixels and its digit."""
    if data:
        sys.path.insert(0, str(Path(__file__).parent))
        from torch_digits import load_mnist

        images, labels, *_ = load_mnist(Path(data))
        return images.reshape(len(images), -1).numpy(), labels.numpy()
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return pixels, digits


def torch_estimator(pixels: int, **options):
    import torch

    from farandole.estimators import TorchEstimator

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(pixels, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    return TorchEstimator(model=model, optimizer=optimizer, loss="cross_entropy", **options)


def keras_estimator(pixels: int, **options):
    import keras

    from farandole.estimators import KerasEstimator

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((pixels,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(0.002)
    return KerasEstimator(
        model=keras.Sequential(layers),
        optimizer=optimizer,
        loss=loss,
        metrics=["accuracy"],
        **options,
    )


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("digits")
    spark = (builder.master(arguments.master) if arguments.master else builder).getOrCreate()

    pixels, digits = load(arguments.data)
    names = [f"pixel{place}" for place in range(pixels.shape[1])]
    rows = [(*row, label) for row, label in zip(pixels.tolist(), digits.tolist(), strict=True)]
    raw = spark.createDataFrame(rows, [*names, "digit"])
    train, test = raw.randomSplit([0.8, 0.2], seed=1)

    make = torch_estimator if arguments.framework == "torch" else keras_estimator
    estimator = make(
        len(names),
        feature_cols=["features"],
        label_cols=["digit"],
        prediction_col="prediction",
        validation=0.1,
        epochs=arguments.epochs,
        num_proc=arguments.num_proc,
        batch_size=16,
        store=Store.create(arguments.work),
        random_seed=1,
    )
    assembler = VectorAssembler(inputCols=names, outputCol="raw")
    scaler = MinMaxScaler(inputCol="raw", outputCol="features")
    pipeline = Pipeline(stages=[assembler, scaler, estimator])
    model = pipeline.fit(train)

    predicted = model.transform(test).withColumn("scores", vector_to_array("digit__output"))
    path = f"{arguments.work}/predictions"
    predicted.select("digit", "prediction", "scores").write.mode("overwrite").parquet(path)
    written = spark.read.parquet(path)
    accuracy = MulticlassClassificationEvaluator(labelCol="digit", metricName="accuracy").evaluate(
        written
    )
    print(f"accuracy {accuracy:.2%} of {written.count()} predictions in {path}")
    spark.stop()


if __name__ == "__main__":
    main()
