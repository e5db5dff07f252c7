"""The terms of a benchmark (contender, case, run), and the sampling loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.strategies.specs import ALLREDUCE, known

# The contenders. Of allreduce:
OURS = "Farandole"
GLOO, GLOO_FLAT, MPI, MPICH, INTEL = (
    "Gloo",
    "Gloo, one flat tensor",
    "Open MPI",
    "MPICH",
    "Intel MPI",
)
DEEPSPEED = "DeepSpeed"
NCCL = "NCCL"
# Parts of ours between hosts:
PARTS = ("shared memory: reduce-scatter", "network", "shared memory: all-gather")
# Contenders of the training step, in addition to ours:
ALONE = "one process"  # the other ranks wait
# every rank trains alone at the same time: the machine is shared, but no gradient
TOGETHER = "no exchange"
DDP, DDP_NCCL = "DDP on Gloo", "DDP on NCCL"
MIRRORED = "MultiWorkerMirroredStrategy"  # TensorFlow's
SHARDED = "jax.distributed on Gloo"
PEERS = (DDP, DDP_NCCL, MIRRORED, SHARDED)
# Our training step with observers:
UNWATCHED, TIMELINE, TUNED = "without stall check", "with timeline", "autotune's sizes"
# Contenders of the start, in addition to ours:
TORCHRUN, IMPORT = "torchrun", "import torch"
# Of jobs, in addition to ours: without a queue, and other trackers
FARANDOLE_RUN = "farandole run"
MLFLOW, TRACKIO, TENSORBOARD = "MLflow", "Trackio", "tensorboardX"
TRACKERS = (MLFLOW, TRACKIO, TENSORBOARD)
AGAIN = "again"
TORCH_DISTRIBUTOR, BARE_STAGE = "TorchDistributor", "bare stage, import torch"
ONE_HOST, SSH_ALONE = "on one host", "ssh alone"
# Contenders of data, in addition to ours:
KEPT, IN_ORDER = "ours, kept in memory", "ours, in order"
DATALOADER, SHUFFLED = "DataLoader on pyarrow", "DataLoader that shuffles"
TF_DATA, PETASTORM = "tf.data on pyarrow", "petastorm"
STEPS = "steps without data"
# Contenders of inference on Spark, in addition to ours; ROW_BY_ROW also of data:
PREDICT_BATCH, ROW_BY_ROW = "predict_batch_udf", "row by row"


@dataclass(frozen=True)
class Case:
    """One row of a table: the seconds that one operation took each contender, sample by sample."""

    benchmark: str
    name: str
    samples: Mapping[str, list[float]]
    per_sample: int = 1  # the number of operations that a sample averages
    bytes: int = 0

    @property
    def title(self) -> str:
        return f"{self.benchmark}: {self.name}"

    def median(self, contender: str) -> float:
        return statistics.median(self.samples[contender])

    def spread(self, contender: str) -> tuple[float, float]:
        """Return the 10th and the 90th percentile."""
        values = self.samples[contender]
        if len(values) < 2:
            return values[0], values[0]
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    def ratio(self, contender: str) -> float:
        """Return the contender's median time as a multiple of ours."""
        return self.median(contender) / self.median(OURS)

    def added(self, contender: str) -> float:
        """Return the seconds that the exchange adds to the training step of one process."""
        return self.median(contender) - self.median(ALONE)

    def record(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        contenders = {
            name: {
                "median": self.median(name),
                "p10": self.spread(name)[0],
                "p90": self.spread(name)[1],
                "ratio_to_ours": self.ratio(name),
                "samples": self.samples[name],
            }
            for name in self.samples
        }
        facts = {name: value for name, value in asdict(self).items() if name != "samples"}
        return {**facts, "contenders": contenders}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Case:
        """Return the case of a ``record``."""
        facts = {name: value for name, value in record.items() if name != "contenders"}
        return cls(
            **facts,
            samples={
                name: contender["samples"] for name, contender in record["contenders"].items()
            },
        )


@dataclass(frozen=True)
class Run:
    """The training of one strategy under one condition."""

    benchmark: str
    name: str  # the condition
    strategy: str
    setting: str  # of the optimizer
    rate: float  # rows per second that counted, of all ranks
    staleness: float  # mean
    dropped: float  # fraction of pushes dropped as late
    curve: Sequence[tuple[float, float]]  # seconds, and the accuracy of rank 0's weights in percent
    curves: Sequence[Sequence[tuple[float, float]]] = ()  # of each seed, if there are several

    @property
    def title(self) -> str:
        return f"{self.name}, {self.strategy}"

    def after(self, percent: float) -> float | None:
        """Return the seconds until this accuracy was first reached."""
        return next((seconds for seconds, accuracy in self.curve if accuracy >= percent), None)

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Learned:
    """The final result of training with one strategy or codec: means of several seeds."""

    benchmark: str
    name: str  # of the data
    strategy: str
    setting: str
    accuracy: float  # percent
    baseline: float  # accuracy of an all-reduce with the same number of epochs and rows
    mebibytes: float  # bytes sent by rank 0
    seconds: float  # of a processor core, on rank 0: hardly affected by other programs
    staleness: float
    cost: float  # milliseconds of a codec for a MiB of float32
    seeds: int = 3
    # standard error of the mean difference to all-reduce, over the seeds; 0: unknown
    error: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.name}, {self.strategy}"

    def record(self) -> dict[str, Any]:
        return asdict(self)


Found = Case | Run | Learned


def from_record(record: Mapping[str, Any]) -> Found:
    """Return the result of a ``record``."""
    if "contenders" in record:
        return Case.from_record(record)
    return Run(**record) if "curve" in record else Learned(**record)


def parts(spec: str) -> tuple[str, str]:
    """Return the strategy and the codec of a spec: either one, or ``strategy+codec``."""
    first, _, second = spec.partition("+")
    return (first, second) if first.partition(":")[0] in known() else (ALLREDUCE, first)


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    repetitions: int,
    per_sample: int = 1,
    warm_up: bool = True,
    before: Callable[[], object] = lambda: None,
    prepare: Mapping[str, Callable[[], object]] | None = None,
    after: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Time the contenders in turns (A, B, C, A, B, C, ...), so that disturbances of the machine
    affect all of them equally.

    ``warm_up``: run each once untimed first. ``before`` runs untimed before each sample (to
    synchronize the ranks), ``prepare[name]`` before that, and ``after[name]`` after each sample of
    a contender.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    ready = {name: (prepare or {}).get(name, lambda: None) for name in contenders}
    settle = {name: (after or {}).get(name, lambda: None) for name in contenders}
    for name, run in contenders.items() if warm_up else ():
        ready[name]()
        before()
        run()
        settle[name]()
    for _ in range(repetitions):
        for name, run in contenders.items():
            ready[name]()
            before()
            start = time.perf_counter()
            for _ in range(per_sample):
                run()
            samples[name].append((time.perf_counter() - start) / per_sample)
            settle[name]()
    return samples
