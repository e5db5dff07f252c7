"""Reasons why runs are not comparable: pure functions of their measures.

A comparison of durations is fair only if each run trained the same model to the same quality: with
the same samples, data and settings, on equal machines. Each check covers one reason. It yields a
finding for each run with a fault, or for each run that differs from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from farandole.errors import counted
from farandole.jobs.comparison.measures import NO_EXCHANGE_CODES, RunMeasures

_TOLERANCE = 0.05  # relative difference of sample counts that is not a finding
_RATE_TOLERANCE = 0.1  # relative difference from a scaling rule
_LOAD = 0.25  # difference of the load by other processes, as a share of the cores
_FRACTIONS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 8: "an eighth"}


class Reason(str, Enum):
    """The stable code of a reason."""

    NO_EXCHANGE = "no-gradients-exchanged"
    SAME_DATA = "same-data-on-all-ranks"
    SAMPLES = "samples"
    EPOCHS = "epochs"
    DATA = "training-data"
    VALIDATION = "validation-data"
    LEARNING_RATE = "learning-rate"
    BATCH = "batch"
    MACHINES = "machines"
    CORES = "cores"
    LOAD = "load"
    SEEDS = "seeds"
    END = "end"
    ATTEMPTS = "attempts"
    SIZES = "changed-ranks"


@dataclass(frozen=True)
class Unfairness:
    """One reason why runs are not comparable.

    - ``code``: The ``Reason``.
    - ``runs``: The ids of the runs to which it applies.
    - ``seen``: The facts, with numbers. ``why``: Their effect. ``cure``: What to do.
    """

    code: Reason
    runs: tuple[str, ...]
    seen: str
    why: str
    cure: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "code": self.code.value}


def fairness(runs: Sequence[RunMeasures]) -> list[Unfairness]:
    """Return the reasons why ``runs`` are not comparable, the most serious first."""
    return [finding for check in _CHECKS for finding in check(runs)]


# --- faults of one run


def no_exchange(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs whose ranks trained without exchanging gradients."""
    for run in runs:
        if run.exchanges is not False:
            continue
        codes = sorted(NO_EXCHANGE_CODES & set(run.findings))
        found = f" [{', '.join(codes)}]" if codes else ""
        trained = "the same model" if run.same_data else "a model of its own"
        yield Unfairness(
            Reason.NO_EXCHANGE,
            (run.run_id,),
            f"{label(run)}: {_ranks(run)} exchanged no gradients{found}. Each rank trained"
            f" {trained}{_training_of_a_rank(run, runs)}",
            f"The duration of {label(run)} is the duration of {run.ranks} separate trainings, not"
            " of a distributed one. Only one of the models is kept.",
            "Wrap the optimizer, hvd.DistributedOptimizer(optimizer), and submit the run again.",
        )


def same_data(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs whose ranks trained on the same data."""
    for run in runs:
        if run.same_data:
            yield Unfairness(
                Reason.SAME_DATA,
                (run.run_id,),
                f"{label(run)}: {_ranks(run)} trained on the same data.",
                f"An epoch reads each sample {run.ranks} times: the ranks do not share the work.",
                "Give each rank its part of the data: hvd.shard(x, y), shard=True, or a"
                " DistributedSampler.",
            )


def _training_of_a_rank(run: RunMeasures, runs: Sequence[RunMeasures]) -> str:
    """Describe the training of one rank, and its length compared with the longest other run."""
    same = " on the same data" if run.same_data else ""
    for noun, value in (("epochs", run.epochs), ("samples", run.samples_per_model)):
        known = {_length(each, noun): each for each in runs if each is not run}
        longest = max(known, default=0.0)
        if value and longest and not _close(value, longest, _TOLERANCE):
            share = f"{fraction(value, longest)} of the {noun} of {label(known[longest])}"
            return f"{same}, for {share} ({value:,.0f} instead of {longest:,.0f})."
    return f"{same}."


def _length(run: RunMeasures, noun: str) -> float:
    return (run.epochs if noun == "epochs" else run.samples_per_model) or 0.0


# --- the amount of training, and the data


def samples(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs whose models have seen a different number of samples from the first run's model.

    If the samples are unknown, compare the epochs.
    """
    first = runs[0]
    for run in runs[1:]:
        mine, other = run.samples_per_model, first.samples_per_model
        if mine and other:
            if not _close(mine, other, _TOLERANCE):
                yield _samples(first, run, other, mine)
        elif run.epochs and first.epochs and not _close(run.epochs, first.epochs, _TOLERANCE):
            yield Unfairness(
                Reason.EPOCHS,
                (first.run_id, run.run_id),
                f"epochs: {run.epochs:g} in {label(run)}, {first.epochs:g} in {label(first)}.",
                "A shorter training ends sooner, regardless of the number of ranks.",
                "Do not divide the epochs by size(). Compare the times to an equal validation"
                " value.",
            )


def _samples(first: RunMeasures, run: RunMeasures, other: float, mine: float) -> Unfairness:
    epochs = ""
    if run.epochs and first.epochs and not _close(run.epochs, first.epochs, _TOLERANCE):
        epochs = f" ({run.epochs:g} epochs; {first.epochs:g} in {label(first)})"
    return Unfairness(
        Reason.SAMPLES,
        (first.run_id, run.run_id),
        f"samples per model: {mine:,.0f} in {label(run)}, {fraction(mine, other)} of {other:,.0f}"
        f" in {label(first)}{epochs}.",
        "A shorter training ends sooner, regardless of the number of ranks.",
        "Train on the same number of samples, or compare the times to an equal validation value.",
    )


def training_data(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find single-process runs that trained on different data."""
    first = runs[0]
    for run in runs[1:]:
        if run.data and first.data and run.data != first.data and run.ranks == first.ranks == 1:
            yield Unfairness(
                Reason.DATA,
                (first.run_id, run.run_id),
                f"{label(run)} and {label(first)} trained on different data.",
                "The data may explain differences in the metrics.",
                "Train on the same data.",
            )


def validation(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs that validated on different data."""
    first = runs[0]
    for run in runs[1:]:
        rows = run.validation_rows, first.validation_rows
        more = bool(rows[0] and rows[1] and not _close(rows[0], rows[1], _TOLERANCE))
        other = bool(run.validation and first.validation and run.validation != first.validation)
        if other or more:
            counts = f": {rows[0]:,} and {rows[1]:,} samples" if more else ""
            yield Unfairness(
                Reason.VALIDATION,
                (first.run_id, run.run_id),
                f"{label(run)} and {label(first)} validated on different data{counts}.",
                "The validation values measure different things.",
                "Validate on the same data, or on parts of it with metrics pooled over all ranks.",
            )


# --- the settings


def settings(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs whose learning rate does not fit their batch, compared with the first run.

    The batch is the global batch, over all ranks. A learning rate scaled with the batch or with its
    square root fits.
    """
    first = runs[0]
    for run in runs[1:]:
        batches = _global_batch(run), _global_batch(first)
        rates = run.learning_rate, first.learning_rate
        if not batches[0] or not batches[1] or not rates[0] or not rates[1]:
            continue
        factor, rate = batches[0] / batches[1], rates[0] / rates[1]
        if _close(factor, 1.0, _RATE_TOLERANCE):
            if not _close(rate, 1.0, _RATE_TOLERANCE):
                yield _other_rate(first, run, "the same batch")
            continue
        if any(_close(rate, rule, _RATE_TOLERANCE) for rule in (factor, factor**0.5)):
            continue
        yield _other_rate(first, run, f"a batch {_times(factor)}")


def _other_rate(first: RunMeasures, run: RunMeasures, batch: str) -> Unfairness:
    same = batch == "the same batch"
    return Unfairness(
        Reason.LEARNING_RATE if same else Reason.BATCH,
        (first.run_id, run.run_id),
        f"{label(run)} has {batch} over all ranks ({_global_batch(run):g};"
        f" {_global_batch(first):g} in {label(first)}) and learning rate {run.learning_rate:g}"
        f" ({first.learning_rate:g} in {label(first)}).",
        "The learning rate may explain the difference in the metrics."
        if same
        else "With a larger batch an epoch has fewer steps. Without a larger learning rate, it"
        " learns less.",
        "Use one learning rate."
        if same
        else "Scale the learning rate with the batch, with a warmup of a few epochs, or keep the"
        " batch of all ranks by dividing it by size().",
    )


# --- the machines, the seeds and the ends of the runs


def machines(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs on different hosts, with too few cores, or next to other programs."""
    first = runs[0]
    for run in runs[1:]:
        hosts = set(run.hosts), set(first.hosts)
        if hosts[0] and hosts[1] and not hosts[0] & hosts[1]:
            yield Unfairness(
                Reason.MACHINES,
                (first.run_id, run.run_id),
                f"{label(run)} ran on {_listed(run.hosts)}, {label(first)} on"
                f" {_listed(first.hosts)}.",
                "Durations on different machines say little about the programs.",
                "Run both on the same machines, or compare samples and steps.",
            )
    yield from _short_of_cores(runs)
    yield from _loads(runs)


def _short_of_cores(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    for run in runs:
        per_host = max(run.sizes, default=run.ranks) / max(1, len(run.hosts))
        if run.cores and per_host > run.cores:
            yield Unfairness(
                Reason.CORES,
                (run.run_id,),
                f"{label(run)}: {per_host:g} ranks share the {counted(run.cores, 'core')} of"
                f" {_listed(run.hosts)}.",
                "The ranks take turns on the cores, so the duration does not predict the speed on"
                " as many machines.",
                "Give each rank its own core to measure a speed-up.",
            )


def _loads(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    first = runs[0]
    for run in runs[1:]:
        loads = run.other_load, first.other_load
        if loads[0] is None or loads[1] is None or not run.cores:
            continue
        if abs(loads[0] - loads[1]) > _LOAD * run.cores:
            yield Unfairness(
                Reason.LOAD,
                (first.run_id, run.run_id),
                f"processes other than the ranks used {loads[0]:.1f} cores of the host during"
                f" {label(run)}, {loads[1]:.1f} during {label(first)}.",
                "They took processor time from the ranks, unless the ranks started them.",
                "Repeat the runs one at a time on an idle host.",
            )


def seeds(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find settings that were run with different numbers of seeds."""
    groups: dict[tuple[int, float | None, float | None], set[str]] = {}
    for run in runs:
        groups.setdefault((run.ranks, run.batch, run.learning_rate), set()).add(run.seed)
    counts = {len(each) for each in groups.values()}
    if len(runs) > 2 and len(counts) > 1:
        yield Unfairness(
            Reason.SEEDS,
            tuple(run.run_id for run in runs),
            f"some settings ran with {counted(min(counts), 'seed')}, others with {max(counts)}.",
            "The best of several seeds is better by chance.",
            "Run each setting with the same seeds, and compare means.",
        )


def ends(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find runs that have not completed, or that needed several attempts."""
    for run in runs:
        if run.state != "completed":
            yield Unfairness(
                Reason.END,
                (run.run_id,),
                f"{label(run)} is {run.state}.",
                "Its duration and last values cover only part of a training.",
                "Compare completed runs." if run.ended else "Compare again after its end.",
            )
        if run.attempts > 1:
            yield Unfairness(
                Reason.ATTEMPTS,
                (run.run_id,),
                f"{label(run)} needed {run.attempts} attempts.",
                "Its duration covers only the last attempt, which may continue earlier ones.",
                "Compare runs of one attempt, or compare samples and steps.",
            )


def sizes(runs: Sequence[RunMeasures]) -> Iterator[Unfairness]:
    """Find elastic runs whose number of ranks has changed."""
    for run in runs:
        if len(set(run.sizes)) < 2:
            continue
        effect = (
            "Its duration does not belong to a single number of ranks."
            if run.fixed_batch
            else "The global batch has changed with it, and its duration does not belong to one"
            " number of ranks."
        )
        yield Unfairness(
            Reason.SIZES,
            (run.run_id,),
            f"{label(run)} had {_listed([str(each) for each in run.sizes])} ranks in turn.",
            effect,
            "Compare rank-hours, samples and steps, or runs of a fixed size.",
        )


_Check = Callable[[Sequence[RunMeasures]], Iterator[Unfairness]]
_CHECKS: tuple[_Check, ...] = (
    no_exchange,
    same_data,
    samples,
    training_data,
    validation,
    settings,
    machines,
    seeds,
    sizes,
    ends,
)


# --- texts


def label(run: RunMeasures) -> str:
    """Return the name of a run in messages: its own name, or its id."""
    return run.name or run.run_id


def fraction(part: float, whole: float) -> str:
    """Return a ratio in words, such as ``a quarter``, ``38 %`` or ``4 times``."""
    if part > whole:
        return f"{part / whole:.3g} times"
    for denominator, word in _FRACTIONS.items():
        if _close(whole / part, denominator, 0.06):
            return word
    return f"{part / whole:.0%}".replace("%", " %")


def _times(factor: float) -> str:
    return f"{factor:.3g} times as large" if factor > 1 else f"of {fraction(factor, 1.0)} the size"


def _ranks(run: RunMeasures) -> str:
    return f"its {run.ranks} ranks"


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def _global_batch(run: RunMeasures) -> float:
    """Return the samples per step of one model."""
    if len(set(run.sizes)) > 1:
        return 0.0
    return (run.batch or 0.0) * (1 if run.exchanges is False else run.ranks)


def _close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))
