"""Predict sales of drug stores from tables on Spark, with embeddings of categories. The target is
the log of the sales.

    python examples/spark_rossmann.py --num-proc 2
    spark-submit examples/spark_rossmann.py --stores 1000 --days 900 --num-proc 8 \\
        --work hdfs:///user/me/sales

The columns, and the metric (root mean square percentage error, RMSPE), follow Kaggle's Rossmann
competition. The rows are synthetic: stores of several types, promotions, holidays, competitors near
and far, seasons. The last four weeks are predicted from the earlier ones.
"""

import argparse
import datetime
import os
import sys

import keras
import numpy as np
from keras import layers, ops
from pyspark.ml import Pipeline
from pyspark.ml.feature import Imputer, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from farandole.data import Store
from farandole.estimators import KerasEstimator

# numbers in an embedding
CATEGORIES = {"store": 8, "day_of_week": 3, "month": 3, "type_index": 2, "holiday_index": 2}
NUMBERS = ["promo", "distance", "year_part"]
COLUMNS = (
    "store int, store_type string, competition_distance double, date date, promo int, state_holiday"
    " string, sales int"
)
FIRST = datetime.date(2014, 1, 1)
TEST_DAYS = 28


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--master", help="default: spark-submit's master, else all cores of this machine"
    )
    parser.add_argument("--num-proc", type=int, default=2, metavar="N")
    parser.add_argument(
        "--work", metavar="DIR", default="work", help="folder for data, checkpoints and predictions"
    )
    parser.add_argument("--stores", type=int, default=25)
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=8)
    return parser.parse_args()


def rows(stores: int, days: int, random: np.random.Generator) -> list[tuple]:
    """Return rows of COLUMNS. The distance to the nearest competitor is unknown for some stores; a
    closed store has no sales.
    """
    size = random.normal(8.7, 0.4, stores)  # the log of the sales on a usual day
    kinds = random.integers(0, 4, stores)
    distance = np.round(random.lognormal(7.5, 1.0, stores), -1)
    of_week = random.normal(0, 0.15, (4, 7))  # each type of store has its own weekly pattern
    of_promo = np.array([0.35, 0.15, 0.25, 0.4])
    holidays = {day: "abc"[number % 3] for number, day in enumerate(range(5, days, 30))}
    found = []
    for day in range(days):
        date = FIRST + datetime.timedelta(day)
        promo, holiday = int(day // 7 % 2), holidays.get(day, "0")
        season = 0.15 * np.cos(2 * np.pi * date.timetuple().tm_yday / 365)
        log_sales = size + of_week[kinds, date.weekday()] + promo * of_promo[kinds] + season
        log_sales += (
            -0.3 * np.exp(-distance / 2000)
            - 0.4 * (holiday != "0")
            + random.normal(0, 0.08, stores)
        )
        for store in range(stores):
            closed = date.weekday() == 6 and kinds[store] != 1
            known = float(distance[store]) if store % 10 else None
            sales = 0 if closed else int(np.exp(log_sales[store]))
            found.append((store, "abcd"[kinds[store]], known, date, promo, holiday, sales))
    return found


def prepared(raw):
    """Return the open days, with numeric columns derived from dates and from skewed columns."""
    date = F.col("date")
    return raw.where("sales > 0").select(
        "store",
        "store_type",
        date,
        "promo",
        "state_holiday",
        "sales",
        F.log("sales").alias("log_sales"),
        (F.dayofweek(date) - 1).alias("day_of_week"),
        (F.month(date) - 1).alias("month"),
        (F.dayofyear(date) / 366).alias("year_part"),
        F.log1p("competition_distance").alias("log_distance"),
    )


def features() -> list:
    """Return the stages of the pipeline: index text, impute unknown distances, scale numbers."""
    return [
        StringIndexer(inputCol="store_type", outputCol="type_index", handleInvalid="keep"),
        StringIndexer(inputCol="state_holiday", outputCol="holiday_index", handleInvalid="keep"),
        Imputer(inputCols=["log_distance"], outputCols=["distance"], strategy="median"),
        VectorAssembler(inputCols=NUMBERS, outputCol="assembled"),
        StandardScaler(inputCol="assembled", outputCol="numbers", withMean=True),
    ]


def network(stores: int, mean: float) -> keras.Model:
    """Return a network of an embedding per category and the numeric columns. It initially predicts
    the mean.
    """
    sizes = {"store": stores, "day_of_week": 7, "month": 12, "type_index": 5, "holiday_index": 5}
    inputs, parts = [], []
    for name, width in CATEGORIES.items():
        inputs.append(layers.Input((1,), name=name, dtype="int64"))
        parts.append(layers.Flatten()(layers.Embedding(sizes[name], width)(inputs[-1])))
    inputs.append(layers.Input((len(NUMBERS),), name="numbers"))
    hidden = layers.Concatenate()([*parts, inputs[-1]])
    for units in (64, 32):
        hidden = layers.Dense(units, "relu")(hidden)
    return keras.Model(
        inputs, layers.Dense(1, bias_initializer=keras.initializers.Constant(mean))(hidden)
    )


def rmspe(log_sales, predicted):
    """Return the RMSPE of a batch, for logs."""
    difference = ops.reshape(predicted, (-1,)) - ops.reshape(log_sales, (-1,))
    return ops.sqrt(ops.mean(ops.square(1 - ops.exp(difference))))


def error(frame, predicted) -> float:
    """Return the RMSPE of a column."""
    return frame.select(F.sqrt(F.avg((1 - predicted / F.col("sales")) ** 2))).first()[0]


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("sales")
    spark = (builder.master(arguments.master) if arguments.master else builder).getOrCreate()

    made = rows(arguments.stores, arguments.days, np.random.default_rng(1))
    known = prepared(spark.createDataFrame(made, COLUMNS))
    cut = FIRST + datetime.timedelta(arguments.days - TEST_DAYS)
    train, test = known.where(F.col("date") < F.lit(cut)), known.where(F.col("date") >= F.lit(cut))
    mean, mean_log = train.agg(F.avg("sales"), F.avg("log_sales")).first()

    keras.utils.set_random_seed(1)
    estimator = KerasEstimator(
        model=network(arguments.stores, mean_log),
        optimizer=keras.optimizers.Adam(0.005),
        loss="mse",
        metrics=[rmspe],
        feature_cols=[*CATEGORIES, "numbers"],
        categorical_cols=list(CATEGORIES),
        label_cols=["log_sales"],
        validation=0.1,
        monitor="val_rmspe",
        mode="min",
        batch_size=64,
        epochs=arguments.epochs,
        num_proc=arguments.num_proc,
        store=Store.create(arguments.work),
        random_seed=1,
    )
    model = Pipeline(stages=[*features(), estimator]).fit(train)

    path = f"{arguments.work}/predictions"
    found = model.transform(test).withColumn("predicted", F.exp("log_sales__output"))
    found.select("store", "date", "sales", "predicted").write.mode("overwrite").parquet(path)
    written = spark.read.parquet(path)
    print(
        f"RMSPE {error(written, F.col('predicted')):.1%}, of the mean"
        f" {error(written, F.lit(mean)):.1%}: {written.count()} predictions in {path}"
    )
    spark.stop()


if __name__ == "__main__":
    main()
