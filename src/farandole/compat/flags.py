"""The flags of ``horovodrun``: one row each, with the variable that it sets or the reason why
it has no effect.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple, NoReturn

from farandole.errors import SettingsError
from farandole.job.launch.arguments import check_values

USAGE = "horovodrun -np N [options] python train.py [arguments]"
_ONE_WAY = "Farandole has one implementation, and selects it automatically"
_FIXED = "this is not an elastic job"
_NO_MPI = (
    "mpirun, requested by --mpi, reads options from its own variables (PRTE_MCA_..., HYDRA_...)"
)


class Flag(NamedTuple):
    """A flag. ``names`` are its spellings; ``no`` is the ``--no-`` form of a ``bool`` that has
    one.
    """

    names: tuple[str, ...]
    kind: type
    doc: str
    variable: str = ""  # in the ranks' environment
    scale: int = 1
    no: str = ""
    note: str = ""
    section: str = ""  # its section in the configuration file
    key: str = ""
    name: str = ""  # of the option, if it differs from the flag's in Horovod

    @property
    def dest(self) -> str:
        return self.name or self.names[-1].lstrip("-").replace("-", "_")


# Settings of a rank, set in its environment. Section and key refer to the configuration file.
TUNABLE = (
    Flag(
        ("--fusion-threshold-mb",),
        int,
        "size of the fusion buffer; 0: no fusion",
        "HOROVOD_FUSION_THRESHOLD",
        scale=1 << 20,
        section="params",
        key="fusion_threshold_mb",
    ),
    Flag(
        ("--cycle-time-ms",),
        float,
        "time for which tensors are collected before they are exchanged",
        "HOROVOD_CYCLE_TIME",
        section="params",
        key="cycle_time_ms",
    ),
    Flag(
        ("--cache-capacity",),
        int,
        "entries in the response cache; 0: none",
        "HOROVOD_CACHE_CAPACITY",
        section="params",
        key="cache_capacity",
    ),
    Flag(
        ("--hierarchical-allreduce",),
        bool,
        "reduce within each host first",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        no="--no-hierarchical-allreduce",
        note=_ONE_WAY,
        section="params",
        key="hierarchical_allreduce",
    ),
    Flag(
        ("--hierarchical-allgather",),
        bool,
        "gather within each host first",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        no="--no-hierarchical-allgather",
        note=_ONE_WAY,
        section="params",
        key="hierarchical_allgather",
    ),
    Flag(
        ("--torus-allreduce",),
        bool,
        "two-dimensional allreduce",
        "HOROVOD_TORUS_ALLREDUCE",
        no="--no-torus-allreduce",
        note=_ONE_WAY,
        section="params",
        key="torus_allreduce",
    ),
    Flag(
        ("--autotune",),
        bool,
        "try sizes during training, and keep the fastest",
        "HOROVOD_AUTOTUNE",
        no="--no-autotune",
        section="autotune",
        key="enabled",
    ),
    Flag(
        ("--autotune-log-file",),
        str,
        "CSV file of the sizes that autotune tried",
        "HOROVOD_AUTOTUNE_LOG",
        section="autotune",
        key="log_file",
    ),
    Flag(
        ("--autotune-warmup-samples",),
        int,
        "samples to discard at first",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        section="autotune",
        key="warmup_samples",
    ),
    Flag(
        ("--autotune-steps-per-sample",),
        int,
        "steps per sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        section="autotune",
        key="steps_per_sample",
    ),
    Flag(
        ("--autotune-bayes-opt-max-samples",),
        int,
        "most samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        section="autotune",
        key="bayes_opt_max_samples",
    ),
    Flag(
        ("--autotune-gaussian-process-noise",),
        float,
        "noise of samples, from 0 to 1",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        note="autotune searches a grid of sizes, without a Gaussian process",
        section="autotune",
        key="gaussian_process_noise",
    ),
    Flag(
        ("--timeline-filename",),
        str,
        "file for a Chrome trace, or DYNAMIC",
        "HOROVOD_TIMELINE",
        section="timeline",
        key="filename",
    ),
    Flag(
        ("--timeline-mark-cycles",),
        bool,
        "mark cycles in the timeline",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        no="--no-timeline-mark-cycles",
        section="timeline",
        key="mark_cycles",
    ),
    Flag(
        ("--no-stall-check",),
        bool,
        "do not warn about stalled ranks",
        "HOROVOD_STALL_CHECK_DISABLE",
        no="--stall-check",
    ),
    Flag(
        ("--stall-check-warning-time-seconds",),
        int,
        "time before a stall is reported",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        section="stall_check",
        key="warning_time_seconds",
    ),
    Flag(
        ("--stall-check-shutdown-time-seconds",),
        int,
        "time before a stalled job is ended; 0: never",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        section="stall_check",
        key="shutdown_time_seconds",
    ),
    Flag(
        ("--mpi-threads-disable",),
        bool,
        "run MPI in one thread",
        "HOROVOD_MPI_THREADS_DISABLE",
        no="--no-mpi-threads-disable",
        note="MPI carries no tensors",
        section="library_options",
        key="mpi_threads_disable",
    ),
    Flag(
        ("--num-nccl-streams",),
        int,
        "NCCL streams",
        "HOROVOD_NUM_NCCL_STREAMS",
        note="torch.distributed decides on NCCL's streams",
        section="library_options",
        key="num_nccl_streams",
    ),
    Flag(
        ("--thread-affinity",),
        int,
        "core of the background thread",
        "HOROVOD_THREAD_AFFINITY",
        note="the system places threads; use taskset to bind a program",
        section="library_options",
        key="thread_affinity",
    ),
    Flag(
        ("--gloo-timeout-seconds",),
        int,
        "time limit of Gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        note=(
            "the loss of a rank is detected immediately; --stall-check-shutdown-time-seconds limits"
            " waiting"
        ),
        section="library_options",
        key="gloo_timeout_seconds",
    ),
    Flag(
        ("--log-level",),
        str,
        "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        "HOROVOD_LOG_LEVEL",
        section="logging",
        key="level",
    ),
    Flag(
        ("--log-hide-timestamp", "--log-without-timestamp"),
        bool,
        "log lines without a time stamp",
        "HOROVOD_LOG_HIDE_TIME",
        no="--log-with-timestamp",
        section="logging",
        key="hide_timestamp",
    ),
    Flag(("--start-timeout",), int, "seconds for all ranks to start", "HOROVOD_START_TIMEOUT"),
    Flag(("--tcp",), bool, "TCP only", "NCCL_IB_DISABLE", name="tcp_flag"),
)

# Settings of the launcher.
OWN = (
    Flag(("-np", "--num-proc"), int, "number of processes"),
    Flag(("--verbose",), bool, "log where each rank starts", section="", key="verbose"),
    Flag(("--config-file",), str, "YAML file of these flags; the command line has precedence"),
    Flag(
        ("--output-filename",),
        str,
        "folder for the output of each rank: rank.<number>/stdout and stderr",
    ),
    Flag(
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        bool,
        "prefix each line with the time",
    ),
    Flag(("-H", "--hosts"), str, "hosts and slots: h1:2,h2:4"),
    Flag(("-hostfile", "--hostfile"), str, "file of hosts: <host> slots=<n> per line"),
    Flag(
        ("--host-discovery-script",),
        str,
        "program that prints the hosts of an elastic job, host or host:slots per line",
    ),
    Flag(("--min-np", "--min-num-proc"), int, "minimum number of processes of an elastic job"),
    Flag(("--max-np", "--max-num-proc"), int, "maximum number of processes of an elastic job"),
    Flag(
        ("--slots-per-host",),
        int,
        "number of slots of hosts that the script prints without one",
        name="slots",
    ),
    Flag(
        ("--elastic-timeout",), int, "maximum wait for enough slots of an elastic job, in seconds"
    ),
    Flag(("--reset-limit",), int, "maximum number of membership changes of an elastic job"),
    Flag(("--disable-cache",), bool, "repeat the check of hosts", note="nothing is cached"),
    Flag(
        ("--network-interface", "--network-interfaces"),
        str,
        "interfaces for the job's traffic",
        name="nics",
    ),
    Flag(("-p", "--ssh-port"), int, "ssh port"),
    Flag(("-i", "--ssh-identity-file"), str, "private key file for ssh"),
    Flag(
        ("--mpi-args",),
        str,
        "arguments of mpirun",
        note=_NO_MPI,
        section="library_options",
        key="mpi_args",
    ),
    Flag(
        ("--binding-args",),
        str,
        "arguments of mpirun",
        note=_NO_MPI,
        section="library_options",
        key="binding_args",
    ),
    Flag(
        ("--gloo",),
        bool,
        "ranks start without mpirun by default",
        name="use_gloo",
    ),
    Flag(("--mpi",), bool, "start ranks with mpirun, if it is installed", name="use_mpi"),
    Flag(("--jsrun",), bool, "start ranks with jsrun", name="use_jsrun"),
)

# Flags without an effect in a job of fixed size, and their options.
_ELASTIC_ONLY = {
    "--slots-per-host": "slots",
    "--elastic-timeout": "elastic_timeout",
    "--reset-limit": "reset_limit",
    "--blacklist-cooldown-range": "cooldown_range",
}
TOGETHER = (("hosts", "hostfile", "host_discovery_script"), ("use_gloo", "use_mpi", "use_jsrun"))
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


class _Parser(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options = super().parse_args(args, namespace)
        check_values(self, options)
        return options

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see horovodrun --help")


def parser() -> argparse.ArgumentParser:
    """Return the parser. Flags that are not given are None, so that a configuration file can
    set them.
    """
    made = _Parser(prog="horovodrun", usage=USAGE)
    made.add_argument("-v", "--version", action="store_true", help="show the version")
    made.add_argument(
        "-cb", "--check-build", action="store_true", help="show the available features, and exit"
    )
    made.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=int,
        metavar=("MIN", "MAX"),
        help="seconds for which an elastic job excludes a host after a process failed there",
    )
    for flag in (*OWN, *TUNABLE):
        if flag.kind is bool:
            made.add_argument(
                *flag.names, dest=flag.dest, action="store_const", const=True, help=flag.doc
            )
        else:
            made.add_argument(
                *flag.names, dest=flag.dest, type=flag.kind, metavar=_metavar(flag), help=flag.doc
            )
        if flag.no:
            names = [
                flag.no,
                *(["--no-log-hide-timestamp"] if flag.no == "--log-with-timestamp" else []),
            ]
            made.add_argument(
                *names,
                dest=flag.dest,
                action="store_const",
                const=False,
                help=f"not {flag.names[0]}",
            )
    made.add_argument("command", nargs=argparse.REMAINDER, help="the command to run on every rank")
    return made


def _metavar(flag: Flag) -> str:
    return {int: "N", float: "X"}.get(flag.kind, "TEXT")


def check(options: argparse.Namespace) -> None:
    """Check the flags by Horovod's rules. Raises SettingsError (a ValueError)."""
    for flag in (*OWN, *TUNABLE):
        value = getattr(options, flag.dest)
        if flag.kind in (int, float) and value is not None and value < 0:
            raise SettingsError(f"{flag.dest}={value} must be >= 0")
    noise = options.autotune_gaussian_process_noise
    if noise is not None and noise > 1:
        raise SettingsError(f"autotune_gaussian_process_noise={noise} must be in [0, 1]")
    for names in TOGETHER:
        given = [
            f"--{name.removeprefix('use_').replace('_', '-')}"
            for name in names
            if getattr(options, name)
        ]
        if len(given) > 1:
            raise SettingsError(
                f"{' and '.join(given)} are mutually exclusive: use only one of them"
            )
    level = options.log_level
    if level is not None and str(level).upper() not in LEVELS:
        raise SettingsError(
            f"--log-level {level} is not a valid choice; choose one of {', '.join(LEVELS)}"
        )


def is_elastic(options: argparse.Namespace) -> bool:
    """Return whether the flags describe an elastic job."""
    bounds = (options.min_num_proc, options.max_num_proc)
    return options.host_discovery_script is not None or any(each is not None for each in bounds)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables that the flags of TUNABLE set."""
    values: dict[str, Any] = {
        flag.variable: _text(flag, getattr(options, flag.dest)) for flag in TUNABLE
    }
    return {name: text for name, text in values.items() if text is not None}


def _text(flag: Flag, value: Any) -> str | None:
    if value is None:
        return None
    if flag.kind is bool:
        return str(int(value))
    return str(value if flag.scale == 1 else int(value * flag.scale))


def notes(options: argparse.Namespace) -> list[str]:
    """Return one line for each flag that is accepted but has no effect."""
    fixed = not is_elastic(options)
    without_effect = [
        (flag.names[-1], flag.note)
        for flag in (*OWN, *TUNABLE)
        if flag.note and getattr(options, flag.dest)
    ]
    if fixed:
        without_effect += [
            (flag, _FIXED) for flag, name in _ELASTIC_ONLY.items() if getattr(options, name)
        ]
    return [f"{name} has no effect: {note}" for name, note in without_effect]
