"""Settings: one field is one knob, with its default, type, doc, flag and environment variable.

The command line, the table in the docs and the worker's environment are derived from the fields.
``FARANDOLE_X`` wins over the ``HOROVOD_X`` that some fields also answer to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from farandole.errors import SettingsError


class Knob(NamedTuple):
    """What there is to know of one setting."""

    name: str
    kind: type
    default: Any
    doc: str
    flag: str
    variable: str
    horovod: str
    scale: float  # what the flag's unit is in the variable's unit (--fusion-threshold-mb is in MiB)


def knob(default: Any, doc: str, *, flag: str = "", horovod: str = "", scale: float = 1.0) -> Any:
    """A field of Settings. ``flag`` is empty for what only launchers set."""
    return field(default=default, metadata={"doc": doc, "flag": flag, "horovod": horovod, "scale": scale})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a worker can be told from outside."""

    rank: int = knob(0, "rank of this process", horovod="HOROVOD_RANK")
    size: int = knob(1, "number of processes", horovod="HOROVOD_SIZE")
    local_rank: int = knob(0, "rank among the processes of this host", horovod="HOROVOD_LOCAL_RANK")
    local_size: int = knob(1, "number of processes on this host", horovod="HOROVOD_LOCAL_SIZE")
    cross_rank: int = knob(0, "index of this host among those with this local rank", horovod="HOROVOD_CROSS_RANK")
    cross_size: int = knob(1, "number of hosts with this local rank", horovod="HOROVOD_CROSS_SIZE")
    hostname: str = knob("", "this host's name in the job", horovod="HOROVOD_HOSTNAME")
    homogeneous: bool = knob(True, "every host runs the same number of processes")
    store: str = knob("", "host:port of the job's store; empty: no job, one rank")
    secret: str = knob("", "the job's secret, in hex")
    launcher: str = knob("", "name of the launcher that started this process")

    transport: str = knob("auto", "wire: auto, shm or tcp", flag="--transport")
    fusion_threshold: int = knob(
        64 << 20, "bytes fused into one exchange; 0 = no fusion",
        flag="--fusion-threshold-mb", horovod="HOROVOD_FUSION_THRESHOLD", scale=1 << 20,
    )  # fmt: skip
    bucket_bytes: int = knob(
        8 << 20, "bytes of gradients collected before they are exchanged", flag="--bucket-mb", scale=1 << 20
    )
    overlap: str = knob(
        "auto", "exchange gradients while backward computes: on, off, or auto (where there are cores to spare)",
        flag="--overlap",
    )  # fmt: skip
    nccl: str = knob(
        "auto", "GPUs exchange directly, by NCCL: on, off (through host memory), or auto (where every rank has one)",
        flag="--nccl",
    )  # fmt: skip
    cycle_time: float = knob(
        1.0, "ms for which asynchronous collectives are gathered before the background thread starts on them",
        flag="--cycle-time-ms", horovod="HOROVOD_CYCLE_TIME",
    )  # fmt: skip
    cache_capacity: int = knob(
        1024, "signatures remembered by the response cache; 0 = off",
        flag="--cache-capacity", horovod="HOROVOD_CACHE_CAPACITY",
    )  # fmt: skip
    stall_check_disable: bool = knob(
        False, "do not warn about ranks that stay away", flag="--no-stall-check", horovod="HOROVOD_STALL_CHECK_DISABLE"
    )
    stall_warning_seconds: float = knob(
        60.0, "seconds after which a waiting tensor is reported",
        flag="--stall-check-warning-time-seconds", horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
    )  # fmt: skip
    stall_shutdown_seconds: float = knob(
        0.0, "seconds after which a stalled job is ended; 0 = never",
        flag="--stall-check-shutdown-time-seconds", horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    )  # fmt: skip
    timeline: str = knob(
        "", "file for a Chrome trace of all collectives, written by rank 0; DYNAMIC: start_timeline() names it",
        flag="--timeline-filename", horovod="HOROVOD_TIMELINE",
    )  # fmt: skip
    timeline_mark_cycles: bool = knob(
        False, "a mark in the timeline for every round of agreement",
        flag="--timeline-mark-cycles", horovod="HOROVOD_TIMELINE_MARK_CYCLES",
    )  # fmt: skip
    timeline_all_ranks: bool = knob(
        False, "every rank writes its timeline, to <file>.rank<N>; see farandole timeline merge",
        flag="--timeline-all-ranks",
    )  # fmt: skip
    autotune: bool = knob(
        False, "try out sizes of exchanges while training, and keep the fastest",
        flag="--autotune", horovod="HOROVOD_AUTOTUNE",
    )  # fmt: skip
    autotune_log: str = knob(
        "", "CSV file for what autotune tried, the best in the last row",
        flag="--autotune-log-file", horovod="HOROVOD_AUTOTUNE_LOG",
    )  # fmt: skip
    autotune_warmup_samples: int = knob(
        3, "samples that autotune throws away at first",
        flag="--autotune-warmup-samples", horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    )  # fmt: skip
    autotune_steps_per_sample: int = knob(
        10, "training steps that autotune measures as one",
        flag="--autotune-steps-per-sample", horovod="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    )  # fmt: skip
    autotune_bayes_opt_max_samples: int = knob(
        20, "sizes that autotune tries at most",
        flag="--autotune-bayes-opt-max-samples", horovod="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    )  # fmt: skip
    autotune_gaussian_process_noise: float = knob(
        0.8, "how little autotune trusts one measurement, from 0 to 1",
        flag="--autotune-gaussian-process-noise", horovod="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    )  # fmt: skip
    dynamic_process_sets: bool = knob(
        False, "process sets may be added and removed after init()",
        flag="--dynamic-process-sets", horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
    )  # fmt: skip
    join_mean_of_present: bool = knob(
        False, "after join(), averages are over the ranks that still have data, not over all",
        flag="--join-mean-of-present",
    )  # fmt: skip
    start_timeout: float = knob(
        30.0, "seconds for all ranks to reach init()", flag="--start-timeout", horovod="HOROVOD_START_TIMEOUT"
    )
    log_level: str = knob(
        "warning", "trace, debug, info, warning, error or fatal", flag="--log-level", horovod="HOROVOD_LOG_LEVEL"
    )
    log_hide_time: bool = knob(
        False, "log lines without a time stamp", flag="--log-without-timestamp", horovod="HOROVOD_LOG_HIDE_TIME"
    )

    def __post_init__(self) -> None:
        for each in knobs():
            value = getattr(self, each.name)
            if each.kind in (int, float) and value < 0:
                raise SettingsError(f"{each.flag or each.variable}={value} must be >= 0")
        noise = self.autotune_gaussian_process_noise
        if noise > 1:
            raise SettingsError(f"--autotune-gaussian-process-noise={noise} must be in [0, 1]")
        if self.transport not in ("auto", "shm", "tcp"):
            raise SettingsError(f"--transport={self.transport!r} is not a wire; choose one of auto, shm, tcp")
        if self.overlap not in ("auto", "on", "off"):
            raise SettingsError(f"--overlap={self.overlap!r} is not one of auto, on, off")
        if self.nccl not in ("auto", "on", "off"):
            raise SettingsError(f"--nccl={self.nccl!r} is not one of auto, on, off")
        if self.log_level.lower() not in LOG_LEVELS:
            raise SettingsError(f"--log-level={self.log_level!r} is not a level; choose one of {', '.join(LOG_LEVELS)}")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the variables of this process (or of ``env``). A value that cannot be read raises SettingsError."""
        source = os.environ if env is None else env
        values: dict[str, Any] = {}
        for each in knobs():
            for variable in (each.variable, each.horovod):
                if variable and source.get(variable, "") != "":
                    values[each.name] = parse(each, variable, source[variable])
                    break
        return cls(**values)

    def to_env(self, said: Container[str] = ()) -> dict[str, str]:
        """The variables that make ``from_env`` give the same settings; only those that differ from the default, and
        those of which a variable is in ``said``: programs look at what they were started with."""
        return {
            variable: _text(getattr(self, each.name))
            for each in knobs()
            if getattr(self, each.name) != each.default or each.variable in said or (each.horovod or "") in said
            for variable in (each.variable, each.horovod)
            if variable
        }


def built_for(env: Mapping[str, str]) -> list[str]:
    """Variables in ``env`` that told Horovod's installer what to compile. Nothing is compiled here."""
    return sorted(name for name in env if _COMPILING.fullmatch(name))


_COMPILING = re.compile(
    "HOROVOD_("
    "(WITH|WITHOUT)_(TENSORFLOW|PYTORCH|MXNET|MPI|GLOO|NVTX)|GPU|GPU_(OPERATIONS|ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL"
    "|REDUCESCATTER)|CPU_OPERATIONS|ALLOW_MIXED_GPU_IMPL|(CUDA|ROCM|NCCL)_(HOME|INCLUDE|LIB)|NCCL_LINK|NVTX_INCLUDE"
    "|CMAKE|BUILD_(ARCH_FLAGS|FLAGS|CUDA_CC_LIST)|DEBUG|SKIP_COMPILE|LOCAL_VERSION)"
)
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def knobs() -> Iterator[Knob]:
    """Every setting, in the order of the fields."""
    for each in fields(Settings):
        yield Knob(
            each.name, _TYPES[str(each.type)], each.default, each.metadata["doc"], each.metadata["flag"],
            f"FARANDOLE_{each.name.upper()}", each.metadata["horovod"], each.metadata["scale"],
        )  # fmt: skip


def parse(each: Knob, variable: str, text: str) -> Any:
    """The value of a setting from text; SettingsError names ``variable`` (or the flag that it came from)."""
    try:
        if each.kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        return each.kind(text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", bool: "0 or 1", str: "text"}
        raise SettingsError(f"{variable}={text!r} cannot be read: it must be {kinds[each.kind]} ({each.doc})") from None


def _text(value: Any) -> str:
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else str(value)  # seconds are whole numbers to Horovod's programs


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
