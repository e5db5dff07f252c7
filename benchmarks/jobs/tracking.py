"""The cost of one metric in the training thread, compared with other trackers, and of reading many
runs: ``python -m benchmarks.jobs.tracking``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from benchmarks.samples import AGAIN, MLFLOW, OURS, TENSORBOARD, TRACKIO, Case
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import encode

RUNS, METRICS, POINTS = 100, 10, 10_000
CALLS = {OURS: 20_000, MLFLOW: 100, TRACKIO: 5_000, TENSORBOARD: 5_000}

Log = Callable[[int], object]


def cases(quick: bool = False) -> Iterator[Case]:
    """Yield the costs of one logged metric, then of reading."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder, _environment(folder):
        samples = {}
        for name, open_ in TRACKERS.items():
            log = open_(os.path.join(folder, name))
            if log is not None:
                samples[name] = timed(log, 50 if quick else CALLS[name])
        yield Case("jobs", "log a metric", samples)
        yield reading(folder, 3 if quick else RUNS)


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """Keep all files of the trackers in ``folder``."""
    kept = dict(os.environ)
    os.environ |= {
        "FARANDOLE_HOME": os.path.join(folder, "home"),
        "XDG_STATE_HOME": os.path.join(folder, "state"),
        "TRACKIO_DIR": os.path.join(folder, "trackio"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= kept


def timed(log: Log, calls: int) -> list[float]:
    """Return the seconds of each call, after a tenth of them as a warm-up."""
    warm_up, found = calls // 10, []
    for step in range(warm_up + calls):
        began = time.perf_counter()
        log(step)
        found.append(time.perf_counter() - began)
    return found[warm_up:]


def _ours(folder: str) -> Log:
    import farandole
    from farandole.job.tracking import tracker

    os.environ[RUN_VARIABLE] = folder
    tracker._forget()
    return lambda step: farandole.log_metric("loss", 0.5, step)


def _mlflow(folder: str) -> Log | None:
    if not find_spec("mlflow"):
        return None
    import mlflow

    sqlite = find_spec("sqlalchemy") is not None
    mlflow.set_tracking_uri(f"sqlite:///{folder}.db" if sqlite else f"file://{folder}")
    mlflow.start_run()
    return lambda step: mlflow.log_metric("loss", 0.5, step=step)


def _trackio(folder: str) -> Log | None:
    if not find_spec("trackio"):
        return None
    import trackio

    trackio.init(project="bench")
    return lambda step: trackio.log({"loss": 0.5}, step=step)


def _tensorboard(folder: str) -> Log | None:
    if not find_spec("tensorboardX"):
        return None
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(folder)
    return lambda step: writer.add_scalar("loss", 0.5, step)


TRACKERS: dict[str, Callable[[str], Log | None]] = {
    OURS: _ours,
    MLFLOW: _mlflow,
    TRACKIO: _trackio,
    TENSORBOARD: _tensorboard,
}


def reading(folder: str, runs: int) -> Case:
    """Return the seconds to read all metrics of ``runs`` runs, the first time and the second."""
    from farandole.jobs import metrics

    names = [f"metric{number}" for number in range(METRICS)]
    data = b"".join(
        encode({"step": step, "time": 1.7e9 + step, "values": dict.fromkeys(names, step * 0.37)})
        for step in range(POINTS)
    )
    folders = [RunFolder(os.path.join(folder, "runs", f"e_{number}_0")) for number in range(runs)]
    for run in folders:
        run.folder("metrics")
        with open(run.metrics_of(0), "wb") as file:
            file.write(data)

    def read() -> float:
        began = time.perf_counter()
        points = sum(len(metrics.series(run, name)[0]) for run in folders for name in names)
        assert points == runs * METRICS * POINTS
        return time.perf_counter() - began

    title = f"read {runs} runs x {METRICS} metrics x {POINTS:,} points"
    return Case("jobs", title, {OURS: [read()], AGAIN: [read() for _ in range(3)]})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs.tracking")
    parser.add_argument("--quick", action="store_true", help="few samples, for a trial")
    for case in cases(parser.parse_args().quick):
        print(case.name)
        for name, seconds in case.samples.items():
            p50, worst = statistics.median(seconds), sorted(seconds)[int(len(seconds) * 0.99)]
            print(f"  {name:<14} p50 {shown(p50):>9}  p99 {shown(worst):>9}")


def shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


if __name__ == "__main__":
    main()
