"""A process is told from outside who it is (``Placement``), its job's store (``Connection``), and
``Settings``.

One field is one setting, with its default, type, doc, flag and environment variable. The command
line, the table in the docs and the worker's environment are derived from the fields.
``FARANDOLE_X`` wins over the ``HOROVOD_X`` that some fields also answer to. ``FARANDOLE_X`` counts
in the unit of its flag, ``HOROVOD_X`` in Horovod's, which is also that of the field.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from farandole.errors import SettingsError, did_you_mean, nearest
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Any:
        return lambda cls: cls


# the worker sets them for programs
HOROVOD_FIXED = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
# the variable that holds what had started a rank when it was told who it is
ORIGIN = "FARANDOLE_ORIGIN"
# see ``surroundings.origin``
STARTERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID")
TORCH = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# torch.distributed's: torchrun serves the store, not rank 0
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
# the variable that holds the pid of a rank whose program is a command
PROCESS = "FARANDOLE_PROCESS"
# the variable that is set if somebody sees the status of this rank's job
STATUS = "FARANDOLE_STATUS"

_Kind = TypeVar("_Kind", bound="Variables")


class Setting(NamedTuple):
    """The facts about one field."""

    name: str
    kind: type
    default: Any
    doc: str
    flag: str  # empty for what only launchers set
    variable: str
    horovod: str
    group: str  # heading of the flag in --help
    unit: str  # of the flag and of our variable
    scale: float  # that unit in the field's (and Horovod's) unit: a MiB has 1 << 20 bytes
    choices: tuple[str, ...]  # of a closed set
    plugins: str  # the kind of which other distributions may add to the choices (see registry)
    least: float
    most: float
    plausible: tuple[float, float]  # values outside are hardly meant; 0 is never meant to be inside

    def shown(self, value: Any) -> str:
        """A value in the unit of the flag and of our variable, as both are written."""
        return _text(value / self.scale if self.scale != 1.0 else value)


def setting(
    default: Any,
    doc: str,
    *,
    flag: str = "",
    horovod: str = "",
    group: str = "",
    unit: str = "",
    scale: float = 1.0,
    choices: tuple[str, ...] = (),
    plugins: str = "",
    least: float = 0.0,
    most: float = math.inf,
    plausible: tuple[float, float] = (0.0, math.inf),
) -> Any:
    """A field of Placement, Connection or Settings."""
    # Its class gives it name, type and variable.
    return Setting(
        "",
        str,
        default,
        doc,
        flag,
        "",
        horovod,
        group,
        unit,
        scale,
        choices,
        plugins,
        least,
        most,
        plausible,
    )


_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_SETTINGS: dict[type[Variables], tuple[Setting, ...]] = {}  # by class


def _named(setting: Setting, name: str, kind: str) -> Setting:
    # Where the flag has a unit that is not the field's, our variable has it, too, and says so in
    # its name.
    ours = name if setting.scale == 1.0 else setting.flag.removeprefix("--").replace("-", "_")
    return setting._replace(name=name, kind=_TYPES[kind], variable=f"FARANDOLE_{ours.upper()}")


MIB = 1 << 20
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
SWITCH = ("auto", "on", "off")
SIZES = (1 << 10, 1 << 40)  # bytes: a message between the two is possible
EXCHANGE, HOSTS, STALLS = "exchange of tensors", "other hosts", "ranks that stay away"
TIMELINE, AUTOTUNE, OTHER = "timeline", "autotune", "other"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Variables:
    """Fields made by ``setting``, and the environment variables for them. Frozen and compared by
    value, as a dataclass, which takes milliseconds to make: every process of a job would pay for
    it.
    """

    def __init_subclass__(cls) -> None:
        _SETTINGS[cls] = tuple(
            _named(vars(cls)[name], name, str(kind)) for name, kind in cls.__annotations__.items()
        )
        for setting in _SETTINGS[cls]:
            delattr(cls, setting.name)

    if not TYPE_CHECKING:  # type checkers know it by its fields

        def __init__(self, **values: Any) -> None:
            for setting in settings_of(type(self)):
                value = values.pop(setting.name, setting.default)
                self.__dict__[setting.name] = checked(
                    setting, setting.flag or setting.variable, value
                )
            if values:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument"
                    f" {next(iter(values))!r}"
                )

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be changed: use replace({name}={value!r})"
            )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def replace(self: _Kind, **changes: Any) -> _Kind:
        """The same with other values of some fields."""
        return type(self)(**{**vars(self), **changes})

    @classmethod
    def from_env(cls: type[_Kind], env: Mapping[str, str] | None = None) -> _Kind:
        """Read the variables of this process (or of ``env``). A value that cannot be read raises
        SettingsError.
        """
        source = os.environ if env is None else env
        values: dict[str, Any] = {}
        for setting in settings_of(cls):
            for variable in (setting.variable, setting.horovod):
                if variable and source.get(variable, "") != "":
                    values[setting.name] = parse(setting, variable, source[variable])
                    break
        return cls(**values)

    def to_env(self, said: Container[str] = ()) -> dict[str, str]:
        """The variables that make ``from_env`` give the same value; only those that differ from the
        default, and those of which a variable is in ``said``: programs look at what they were
        started with.
        """
        found: dict[str, str] = {}
        for setting in settings_of(type(self)):
            value = getattr(self, setting.name)
            if (
                value != setting.default
                or setting.variable in said
                or (setting.horovod or "") in said
            ):
                found[setting.variable] = setting.shown(value)
                if setting.horovod:
                    found[setting.horovod] = _text(value)
        return found


class Placement(Variables):
    """Who this process is in its job. It changes when the job's membership does."""

    rank: int = setting(0, "rank of this process", horovod="HOROVOD_RANK")
    size: int = setting(1, "number of processes", horovod="HOROVOD_SIZE")
    local_rank: int = setting(
        0, "rank among the processes of this host", horovod="HOROVOD_LOCAL_RANK"
    )
    local_size: int = setting(1, "number of processes on this host", horovod="HOROVOD_LOCAL_SIZE")
    cross_rank: int = setting(
        0, "index of this host among those with this local rank", horovod="HOROVOD_CROSS_RANK"
    )
    cross_size: int = setting(
        1, "number of hosts with this local rank", horovod="HOROVOD_CROSS_SIZE"
    )
    hostname: str = setting("", "this host's name in the job", horovod="HOROVOD_HOSTNAME")
    homogeneous: bool = setting(True, "every host runs the same number of processes")
    generation: int = setting(0, "number of the job's membership; a new one has a higher number")


class Connection(Variables):
    """How this process reaches its job."""

    store: str = setting("", "host:port of the job's store; empty: no job, one rank")
    secret: str = setting(
        "", "the job's secret, in hex; with tls: in front, connections are encrypted"
    )
    launcher: str = setting("", "name of the launcher that started this process")


class Settings(Variables):
    """The settings of a user."""

    transport: str = setting(
        "auto",
        "wire between ranks: auto, shm (shared memory), tcp, or one that another distribution adds",
        flag="--transport",
        group=EXCHANGE,
        choices=("auto", *registry.BUILT_IN["wire"]),
        plugins="wire",
    )
    fusion_threshold: int = setting(
        64 * MIB,
        "size up to which tensors are fused into one exchange; 0 = no fusion",
        flag="--fusion-threshold-mb",
        horovod="HOROVOD_FUSION_THRESHOLD",
        group=EXCHANGE,
        unit="MiB",
        scale=MIB,
        plausible=SIZES,
    )
    bucket_bytes: int = setting(
        8 * MIB,
        "size of the gradients that are collected before they are exchanged",
        flag="--bucket-mb",
        group=EXCHANGE,
        unit="MiB",
        scale=MIB,
        plausible=SIZES,
    )
    strategy: str = setting(
        "allreduce",
        "what ranks exchange: gradients (allreduce, adasum), or weights now and then (local_sgd:8,"
        " ...)",
        flag="--strategy",
        group=EXCHANGE,
    )
    codec: str = setting(
        "",
        "add up gradients compressed: a name like int8, or name:argument, like topk:0.01 (see"
        " docs/strategies.md)",
        flag="--codec",
        group=EXCHANGE,
        plugins="codec",
    )
    servers: int = setting(
        1,
        "parameter servers, of strategies like ps and ssp: one beside the driver, several on the"
        " ranks' hosts",
        flag="--servers",
        group=EXCHANGE,
        least=1,
        most=1024,
    )
    replicas: int = setting(
        1,
        "processes of each parameter server, of which all but one may be lost",
        flag="--replicas",
        group=EXCHANGE,
        least=1,
        most=16,
    )
    overlap: str = setting(
        "auto",
        "exchange gradients while backward computes: on, off, or auto (where there are cores to"
        " spare)",
        flag="--overlap",
        group=EXCHANGE,
        choices=SWITCH,
    )
    nccl: str = setting(
        "auto",
        "GPUs exchange directly, by NCCL: on, off (through host memory), or auto (where every rank"
        " has one)",
        flag="--nccl",
        group=EXCHANGE,
        choices=SWITCH,
    )
    cycle_time: float = setting(
        1.0,
        "time for which asynchronous collectives are gathered before the background thread starts"
        " on them",
        flag="--cycle-time-ms",
        horovod="HOROVOD_CYCLE_TIME",
        group=EXCHANGE,
        unit="ms",
        plausible=(0.0, 1000.0),
    )
    cache_capacity: int = setting(
        1024,
        "signatures remembered by the response cache; 0 = off",
        flag="--cache-capacity",
        horovod="HOROVOD_CACHE_CAPACITY",
        group=EXCHANGE,
    )
    network_interfaces: str = setting(
        "",
        "interfaces that carry the job's traffic, like eth0,ib0; without: those that answer, the"
        " fastest first",
        flag="--network-interfaces",
        group=HOSTS,
    )
    tcp_streams: int = setting(
        1,
        "TCP connections between two ranks; several for long links, and for networks that limit"
        " each connection",
        flag="--tcp-streams",
        group=HOSTS,
        least=1,
        most=64,
    )
    tls: bool = setting(
        False,
        "encrypt what goes between hosts (TLS 1.3), with a certificate of the job's own at"
        " each end",
        flag="--tls",
        group=HOSTS,
    )
    ssh_port: int = setting(
        0,
        "port of ssh on all hosts; 0: as ssh's configuration says",
        flag="--ssh-port",
        group=HOSTS,
        most=65535,
    )
    ssh_identity_file: str = setting(
        "", "file with the private key for ssh", flag="--ssh-identity-file", group=HOSTS
    )
    ssh_options: str = setting(
        "", "further options of ssh, like '-J gateway -l me'", flag="--ssh-options", group=HOSTS
    )
    stall_check_disable: bool = setting(
        False,
        "do not warn about ranks that stay away",
        flag="--no-stall-check",
        horovod="HOROVOD_STALL_CHECK_DISABLE",
        group=STALLS,
    )
    stall_warning_seconds: float = setting(
        60.0,
        "time after which a waiting tensor is reported",
        flag="--stall-check-warning-time-seconds",
        horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
        group=STALLS,
        unit="s",
    )
    stall_shutdown_seconds: float = setting(
        0.0,
        "time after which a stalled job is ended; 0 = never",
        flag="--stall-check-shutdown-time-seconds",
        horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        group=STALLS,
        unit="s",
    )
    check: str = setting(
        "warn",
        "when ranks hold different weights, step differently or read the same data: warn, raise,"
        " or off",
        flag="--check",
        group=OTHER,
        choices=("warn", "raise", "off"),
    )
    timeline: str = setting(
        "",
        "file for a Chrome trace of all collectives, written by rank 0; DYNAMIC: start_timeline()"
        " names it",
        flag="--timeline-filename",
        horovod="HOROVOD_TIMELINE",
        group=TIMELINE,
    )
    timeline_mark_cycles: bool = setting(
        False,
        "a mark in the timeline for every round of agreement",
        flag="--timeline-mark-cycles",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES",
        group=TIMELINE,
    )
    timeline_all_ranks: bool = setting(
        False,
        "every rank writes its timeline, to <file>.rank<N>; see farandole timeline merge",
        flag="--timeline-all-ranks",
        group=TIMELINE,
    )
    autotune: bool = setting(
        False,
        "try out sizes of exchanges while training, and keep the fastest",
        flag="--autotune",
        horovod="HOROVOD_AUTOTUNE",
        group=AUTOTUNE,
    )
    autotune_log: str = setting(
        "",
        "CSV file for what autotune tried, the best in the last row",
        flag="--autotune-log-file",
        horovod="HOROVOD_AUTOTUNE_LOG",
        group=AUTOTUNE,
    )
    autotune_warmup_samples: int = setting(
        3,
        "samples that autotune throws away at first",
        flag="--autotune-warmup-samples",
        horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        group=AUTOTUNE,
    )
    autotune_steps_per_sample: int = setting(
        10,
        "training steps that autotune measures as one",
        flag="--autotune-steps-per-sample",
        horovod="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        group=AUTOTUNE,
    )
    autotune_bayes_opt_max_samples: int = setting(
        20,
        "sizes that autotune tries at most",
        flag="--autotune-bayes-opt-max-samples",
        horovod="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        group=AUTOTUNE,
    )
    autotune_gaussian_process_noise: float = setting(
        0.8,
        "how little autotune trusts one measurement, from 0 to 1",
        flag="--autotune-gaussian-process-noise",
        horovod="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        group=AUTOTUNE,
        most=1.0,
    )
    dynamic_process_sets: bool = setting(
        False,
        "process sets may be added and removed after init()",
        flag="--dynamic-process-sets",
        horovod="HOROVOD_DYNAMIC_PROCESS_SETS",
        group=OTHER,
    )
    join_mean_of_present: bool = setting(
        False,
        "after join(), averages are over the ranks that still have data, not over all",
        flag="--join-mean-of-present",
        group=OTHER,
    )
    start_timeout: float = setting(
        30.0,
        "time for all ranks to reach init()",
        flag="--start-timeout",
        horovod="HOROVOD_START_TIMEOUT",
        group=OTHER,
        unit="s",
        least=0.001,
        most=1e9,
    )
    log_level: str = setting(
        "warning",
        "from which level on the log is shown: trace, debug, info, warning, error or fatal",
        flag="--log-level",
        horovod="HOROVOD_LOG_LEVEL",
        group=OTHER,
        choices=LOG_LEVELS,
    )
    log_hide_time: bool = setting(
        False,
        "log lines without a time stamp",
        flag="--log-without-timestamp",
        horovod="HOROVOD_LOG_HIDE_TIME",
        group=OTHER,
    )


def built_for(env: Mapping[str, str]) -> list[str]:
    """Variables in ``env`` that told Horovod's installer what to compile. Nothing is compiled
    here.
    """
    return sorted(name for name in _COMPILING & env.keys() if env[name] != HOROVOD_FIXED.get(name))


_COMPILING = {
    f"HOROVOD_{prefix}{name}"
    for prefix, names in (
        ("WITH_", "TENSORFLOW PYTORCH MXNET MPI GLOO NVTX"),
        ("WITHOUT_", "TENSORFLOW PYTORCH MXNET MPI GLOO NVTX"),
        ("GPU_", "OPERATIONS ALLREDUCE ALLGATHER BROADCAST ALLTOALL REDUCESCATTER"),
        ("CUDA_", "HOME INCLUDE LIB"),
        ("ROCM_", "HOME INCLUDE LIB"),
        ("NCCL_", "HOME INCLUDE LIB LINK"),
        ("BUILD_", "ARCH_FLAGS FLAGS CUDA_CC_LIST"),
        (
            "",
            (
                "GPU CPU_OPERATIONS ALLOW_MIXED_GPU_IMPL NVTX_INCLUDE CMAKE DEBUG SKIP_COMPILE"
                " LOCAL_VERSION"
            ),
        ),
    )
    for name in names.split()
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def settings_of(kind: type[Variables] = Settings) -> tuple[Setting, ...]:
    """Every setting (or field of ``kind``), in the order of the fields."""
    return _SETTINGS[kind]


def variables(*kinds: type[Variables]) -> frozenset[str]:
    """The names of all environment variables of ``kinds``, ours and Horovod's."""
    return frozenset(
        name
        for kind in kinds
        for each in settings_of(kind)
        for name in (each.variable, each.horovod)
        if name
    )


def parse(setting: Setting, name: str, text: str) -> Any:
    """The value of a setting from text. ``name``: the flag or variable that it came from; Horovod's
    variable counts in the field's unit, the others in the flag's. Raises SettingsError for a value
    that cannot be read or used.
    """
    scale = 1.0 if name == setting.horovod else setting.scale
    kind = setting.kind if scale == 1.0 else float
    try:
        value = _READ[kind](text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", bool: "0 or 1"}
        raise SettingsError(
            f"{name}={text!r} cannot be read: it must be {kinds[kind]} ({setting.doc})"
        ) from None
    value = checked(setting, name, value)
    return value if scale == 1.0 else setting.kind(value * scale)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


_READ: dict[type, Callable[[str], Any]] = {bool: _truth, int: int, float: _finite, str: str}


def checked(setting: Setting, name: str, value: Any) -> Any:
    """``value`` if it can be used (of a closed set: in lower case), else SettingsError with
    ``name`` in front.
    """
    if setting.choices:
        known = setting.choices
        if setting.plugins and value.lower() not in known:
            known = ("auto", *registry.names(setting.plugins))
        if value.lower() not in known:
            near = did_you_mean(value.lower(), known)
            raise SettingsError(
                f"{name}={value!r} is not known; choose one of {', '.join(known)}{near}"
            )
        return value.lower()
    if setting.plugins and value:
        try:
            registry.check(setting.plugins, value)
        except SettingsError as error:
            raise SettingsError(f"{name}={value!r}: {error}") from None
    if setting.kind in (int, float) and not setting.least <= value <= setting.most:
        rule = ">= 0" if setting.most == math.inf else f"in [{setting.least:g}, {setting.most:g}]"
        raise SettingsError(f"{name}={value} must be {rule}")
    return value


def doubts(settings: Settings, env: Mapping[str, str]) -> list[str]:
    """Warnings about values that are allowed and hardly meant: sizes in the wrong unit, misspelt
    variables of ours.
    """
    found = []
    for setting in settings_of():
        value = getattr(settings, setting.name)
        low, high = setting.plausible
        if setting.kind in (int, float) and value and not low <= value <= high:
            is_size = setting.scale != 1.0
            amount = f"{_plain(value / setting.scale)} {setting.unit}"
            amount = f"{value} bytes ({amount})" if is_size else amount
            horovod = (
                f"; {setting.horovod} counts {'bytes' if is_size else setting.unit}"
                if setting.horovod
                else ""
            )
            found.append(
                f"{setting.name} is {amount}, which is hardly meant: {setting.flag} and"
                f" {setting.variable} count {setting.unit}{horovod} (default:"
                f" {setting.shown(setting.default)} {setting.unit})"
            )
    return [*found, *_misspelt(env)]


def _misspelt(env: Mapping[str, str]) -> Iterator[str]:
    real = sorted(variables(Placement, Connection, Settings))
    flags = {
        setting.flag.removeprefix("--").replace("-", "_").upper(): setting.variable
        for setting in settings_of()
    }
    # Horovod has variables that we do not answer to; the names of some are not far from those of
    # others.
    for prefix, alike, also in (("FARANDOLE_", 0.75, flags), ("HOROVOD_", 0.85, {})):
        known = {name.removeprefix(prefix): name for name in real if name.startswith(prefix)}
        for name in sorted(env):
            if name.startswith(prefix) and name not in real and name not in HOROVOD_FIXED:
                near = nearest(name.removeprefix(prefix), known | also, alike)
                if near:
                    yield (
                        f"the environment has {name}, which is no setting; did you mean"
                        f" {(known | also)[near]}?"
                    )


def _plain(value: float) -> str:
    """A number for messages: without an exponent, and of a very small one three digits."""
    return (
        text
        if "e" not in (text := f"{value:.15g}")
        else f"{value:.{max(0, 2 - int(text.partition('e')[2]))}f}"
    )


def _text(value: Any) -> str:
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    # seconds are whole numbers to Horovod's programs
    return str(int(value)) if whole else str(value)


def cores() -> int:
    """How many cores this process may use, by its affinity and by the limits of its control
    groups.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, int(min(allowed, quota())))


def spare_cores(settings: Settings, local_size: int) -> bool:
    """Is there a core to exchange on while another one computes, for each of so many ranks? Where
    they have one each, the exchange would only take turns with what computes.
    """
    if settings.overlap != "auto":
        return settings.overlap == "on"
    return cores() >= 2 * local_size


def quota(mounts: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float:
    """How many cores' worth of time the control groups of this process give it; without a limit:
    inf.
    """
    limits = [math.inf]
    for folder, version in control_groups("cpu", mounts, groups):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        limits.append(_limit(" ".join(content(f"{folder}/{name}") for name in names)))
    return min(limits)


def control_groups(controller: str, mounts: str, groups: str) -> Iterator[tuple[str, int]]:
    """The folders of this process's control groups, those above them included, each with its
    version.
    """
    for line in content(groups).splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        for top in (
            (f"{mounts}/{names}", f"{mounts}/{controller}")
            if names
            else (mounts, f"{mounts}/unified")
        ):
            if os.path.isdir(top):
                yield from (
                    ("/".join([top, *parts[:depth]]), 1 if names else 2)
                    for depth in range(len(parts) + 1)
                )


def _limit(text: str) -> float:
    """Microseconds of time in a period, as "200000 100000"; "max" or -1 is no limit."""
    words = text.split()
    return (
        int(words[0]) / int(words[1])
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit()
        else math.inf
    )


def content(path: str) -> str:
    """The text of a file of the system; empty if there is none, or none that may be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def torch_variables(placement: Placement, address: str, port: int) -> dict[str, str]:
    """Those of torchrun: ``torch.distributed.init_process_group`` reads them, and so do scripts.
    ``address``, ``port``: where rank 0 makes torch.distributed's store when it calls that.
    """
    rank, size, node, nodes = (
        placement.rank,
        placement.size,
        placement.cross_rank,
        placement.cross_size,
    )
    values = (
        rank,
        size,
        placement.local_rank,
        placement.local_size,
        node,
        nodes,
        rank,
        size,
        "default",
        address,
        port,
    )
    return {name: str(value) for name, value in zip(TORCH, values, strict=True)}
