"""The measures of one run: its duration, samples, steps, exchanges and settings of training.

Farandole records most of them automatically (``job.tracking.training``). A missing measure is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.job.runs.folder import RunFolder
from farandole.job.tracking.tracker import FINDING, PROCESS, TRAINING
from farandole.job.tracking.training import (
    EPOCHS,
    EXCHANGE_BYTES,
    LEARNING_RATE,
    ROWS_PER_STEP,
    SAMPLES,
    STEPS,
)
from farandole.jobs import metrics
from farandole.jobs.details import details

# Findings of the checks: ranks exchanged no gradients, or trained on the same data.
NO_EXCHANGE_CODES = frozenset({"FAR012", "FAR014", "FAR016"})
SAME_DATA_CODES = frozenset({"FAR006", "FAR007", "FAR027"})
# Common names of parameters and options, the most specific first.
_RATES = ("learning_rate", "lr", "rate")
_BATCHES = ("batch_size", "batch", "per_device_batch_size")
_EPOCHS = ("epochs", "num_epochs", "max_epochs")
_GRADIENT_BYTES = 64  # minimum bytes per step that are certainly gradients; fewer may be metrics
_SEEDS = ("seed", "random_seed", "random_state")


@dataclass(frozen=True)
class RunMeasures:
    """The measures of a run; None for an unknown measure.

    - ``ranks``: The number of ranks; for an elastic run, the last number. ``sizes``: the numbers of
      ranks of all its memberships in order; empty for a run of a fixed size. ``fixed_batch``:
      whether the batch of all ranks stays the same when ranks are lost or added.
    - ``seconds``: The duration of the run's last attempt; ``rank_hours``: the total duration of its
      ranks, in hours.
    - ``began``: The start of the run's last attempt, in seconds since 1970.
    - ``samples``: Samples that all ranks have trained on; a sample counts once per epoch and rank.
    - ``samples_per_model``: Samples that one model has seen: the samples of rank 0 if the ranks
      exchanged no gradients, else of all ranks.
    - ``steps``, ``epochs``: Steps and epochs of rank 0.
    - ``batch``: Samples per step of one rank.
    - ``exchange_bytes``: Bytes of rank 0's collectives.
    - ``exchanges``: Whether the ranks exchanged gradients; None if unknown or for one rank.
    - ``same_data``: Whether all ranks trained on the same data; None if unknown or for one rank.
    - ``data``, ``validation``: Digests of the training data of rank 0, and of the validation data
      of all ranks; empty if unknown.
    - ``validation_rows``: The number of validation rows.
    - ``seed``: The parameter with the seed, as text; empty if unknown.
    - ``hosts``: Hosts of the ranks. ``cores``: Cores of rank 0's host.
    - ``other_load``: Average number of cores of rank 0's host used by processes other than the
      ranks.
    - ``findings``: Codes of the checks' findings on all ranks, sorted.
    """

    run_id: str
    name: str
    state: str
    target: str
    ranks: int
    nodes: int
    attempts: int
    seconds: float | None = None
    began: float | None = None
    rank_hours: float | None = None
    samples: float | None = None
    samples_per_model: float | None = None
    steps: float | None = None
    epochs: float | None = None
    batch: float | None = None
    learning_rate: float | None = None
    exchange_bytes: float | None = None
    exchanges: bool | None = None
    same_data: bool | None = None
    data: str = ""
    validation: str = ""
    validation_rows: int | None = None
    seed: str = ""
    hosts: tuple[str, ...] = ()
    cores: int | None = None
    other_load: float | None = None
    findings: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    fixed_batch: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "canceled")


def measures(folder: RunFolder) -> RunMeasures:
    """Return the measures of a run. Raises RunError if the folder is damaged."""
    facts = details(folder)
    ranks = metrics.ranks(folder)
    automatic = {rank: metrics.last_values(folder, rank, automatic=True) for rank in ranks}
    zero = automatic.get(0, {})
    training = {rank: _training(folder, rank) for rank in ranks}
    of_zero = training.get(0, {})
    named = {**_arguments(facts["command"]), **facts["parameters"], **metrics.params(folder)}
    codes = tuple(
        sorted({each["code"] for rank in ranks for each in metrics.logged(folder, FINDING, rank)})
    )
    processes = {rank: metrics.logged(folder, PROCESS, rank) for rank in ranks}
    host_of = {rank: str(each[-1].get("host")) for rank, each in processes.items() if each}
    exchanges = _exchanges(facts["ranks"], codes, zero)
    same_data = _same_data(facts["ranks"], codes, training)
    elastic = bool(facts["memberships"])
    of_ranks = _total(automatic, SAMPLES, facts["ranks"])
    samples = _total_of_processes(folder, ranks) if elastic else of_ranks
    return RunMeasures(
        run_id=folder.run_id,
        name=facts["name"],
        state=facts["state"],
        target=facts["target"],
        ranks=facts["ranks"],
        nodes=facts["nodes"],
        attempts=facts["attempts"],
        seconds=facts["seconds"],
        began=facts["started"],
        rank_hours=None if facts["rank_seconds"] is None else facts["rank_seconds"] / 3600,
        **_sizes(facts),
        samples=samples,
        samples_per_model=zero.get(SAMPLES) if exchanges is False else samples,
        steps=zero.get(STEPS),
        epochs=_first(zero.get(EPOCHS), _number(named, _EPOCHS)),
        batch=_first(of_zero.get("batch_size"), zero.get(ROWS_PER_STEP), _number(named, _BATCHES)),
        learning_rate=_first(
            of_zero.get("learning_rate"), zero.get(LEARNING_RATE), _number(named, _RATES)
        ),
        exchange_bytes=zero.get(EXCHANGE_BYTES),
        exchanges=exchanges,
        same_data=same_data,
        data=str(of_zero.get("data", "")),
        **_validation(training),
        seed=str(next((named[name] for name in _SEEDS if name in named), "")),
        hosts=tuple(sorted(set(host_of.values()))),
        cores=next((each[-1].get("cores") for each in processes.values() if each), None),
        other_load=_other_load(folder, host_of),
        findings=codes,
    )


def _sizes(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sizes": tuple(each["ranks"] for each in facts["memberships"]),
        "fixed_batch": bool(facts["settings"].get("fixed_global_batch")),
    }


def _training(folder: RunFolder, rank: int) -> dict[str, Any]:
    """Return the facts about a rank's training; later facts replace earlier ones."""
    found: dict[str, Any] = {}
    for record in metrics.logged(folder, TRAINING, rank):
        found |= record["values"]
    return found


def _exchanges(ranks: int, codes: Sequence[str], values: Mapping[str, float]) -> bool | None:
    if ranks < 2:
        return None
    if NO_EXCHANGE_CODES & set(codes):
        return False
    nbytes, steps = values.get(EXCHANGE_BYTES), values.get(STEPS)
    if nbytes is None or not steps:
        return None
    # Metrics are exchanged once per epoch, gradients in each step.
    return False if nbytes == 0 else True if nbytes / steps >= _GRADIENT_BYTES else None


def _same_data(
    ranks: int, codes: Sequence[str], training: Mapping[int, Mapping[str, Any]]
) -> bool | None:
    """Return whether the ranks trained on the same data, by findings, models and digests."""
    if ranks < 2:
        return None
    if SAME_DATA_CODES & set(codes) or training.get(0, {}).get("models") == 1:
        return True
    digests = [each.get("data") for each in training.values()]
    if len(digests) < ranks or not all(digests):
        return None
    return len(set(digests)) == 1


def _validation(training: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the digest and the number of rows of the validation data.

    If each rank has its own part, there is no digest, and the rows are summed over the ranks.
    """
    if not training:
        return {}
    digests = {str(each.get("validation", "")) for each in training.values()}
    rows = [each.get("validation_rows") for each in training.values()]
    if len(digests) == 1:
        return {"validation": digests.pop(), "validation_rows": rows[0]}
    return {"validation_rows": None if None in rows else sum(rows)}


def _total(values: Mapping[int, Mapping[str, float]], name: str, ranks: int) -> float | None:
    """Return the sum of a metric over all ranks; None if a rank has none."""
    known = [each[name] for each in values.values() if name in each]
    return sum(known) if known and len(known) == ranks else None


def _total_of_processes(folder: RunFolder, ranks: Sequence[int]) -> float | None:
    """Return the samples of an elastic run. A rank's journal holds the totals of successive
    processes, and a process whose rank changes continues in a different journal. A process is
    identified by its host and PID; its samples are its highest recorded total. None if no process
    has recorded any.
    """
    found: dict[tuple[str, int], float] = {}
    for rank in ranks:
        begins = [
            (float(each["time"]), str(each.get("host")), int(each.get("pid", 0)))
            for each in metrics.logged(folder, PROCESS, rank)
        ]
        _, times, values = metrics.series(folder, SAMPLES, rank)
        for when, total in zip(times.tolist(), values.tolist(), strict=True):
            of = [(host, pid) for began, host, pid in begins if began <= when]
            if of:
                found[of[-1]] = max(found.get(of[-1], 0.0), total)
    return sum(found.values()) if found else None


def _other_load(folder: RunFolder, hosts: Mapping[int, str]) -> float | None:
    """Return the average number of cores of rank 0's host used by processes other than the
    ranks.
    """
    total = metrics.series(folder, "system/host_cpu_cores")[2]
    there = [rank for rank, host in hosts.items() if host == hosts.get(0)]
    own = [metrics.series(folder, "system/cpu_cores", rank)[2] for rank in there]
    if not len(total) or not all(len(each) for each in own):
        return None
    return max(0.0, float(total.mean()) - sum(float(each.mean()) for each in own))


def _arguments(command: Sequence[str]) -> dict[str, str]:
    """Return the options of a command by name: ``--lr 0.1`` and ``--lr=0.1``."""
    found: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        match = re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(.*))?", word)
        if match:
            value = following if match[2] is None else match[2]
            found[match[1].replace("-", "_").lower()] = value
    return found


def _number(named: Mapping[str, Any], names: Iterable[str]) -> float | None:
    for name in names:
        try:
            return float(named[name])
        except (KeyError, TypeError, ValueError):
            continue
    return None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
